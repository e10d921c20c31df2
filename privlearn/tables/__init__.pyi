from .encoding import Encoding
from .readers import read
from .schema import Boolean, Category, Date, Ignored, Number, Schema
from .table import Table, public_split

__all__ = [
    "Boolean",
    "Category",
    "Date",
    "Encoding",
    "Ignored",
    "Number",
    "Schema",
    "Table",
    "public_split",
    "read",
]
