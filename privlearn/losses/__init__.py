"""Privacy losses: what one release costs, with prices in every currency.

The kinds are listed here; a kind of its own file is one line more.
"""

from privlearn.losses.adjacency import Conversion as Conversion
from privlearn.losses.adjacency import as_replace_one as as_replace_one
from privlearn.losses.adjacency import as_zero_out as as_zero_out
from privlearn.losses.base import ComposedLoss as ComposedLoss
from privlearn.losses.base import Loss as Loss
from privlearn.losses.base import compose as compose
from privlearn.losses.base import foreign_kinds as foreign_kinds
from privlearn.losses.base import is_bounded_range as is_bounded_range
from privlearn.losses.base import leaves_of as leaves_of
from privlearn.losses.base import loss_from_dict as loss_from_dict
from privlearn.losses.base import parts_of as parts_of
from privlearn.losses.base import register as register
from privlearn.losses.base import registered_kinds as registered_kinds
from privlearn.losses.declared import DeclaredLoss as DeclaredLoss
from privlearn.losses.declared import declared_in as declared_in
from privlearn.losses.declared import recorded as recorded
from privlearn.losses.discrete import DiscreteGaussian as DiscreteGaussian
from privlearn.losses.discrete import DiscreteLaplace as DiscreteLaplace
from privlearn.losses.failing import FailingLoss as FailingLoss
from privlearn.losses.fixed_batch import FixedBatch as FixedBatch
from privlearn.losses.gaussian import GaussianLoss as GaussianLoss
from privlearn.losses.gaussian import GeneralizedGaussian as GeneralizedGaussian
from privlearn.losses.gaussian import gaussian_loss as gaussian_loss
from privlearn.losses.gaussian import gaussian_std as gaussian_std
from privlearn.losses.gaussian_mixture import GaussianMixture as GaussianMixture
from privlearn.losses.minimizer import MinimizerLoss as MinimizerLoss
from privlearn.losses.minimizer import zcdp_rate as zcdp_rate
from privlearn.losses.minimum import LeastLoss as LeastLoss
from privlearn.losses.per_arrival import PerArrivalLoss as PerArrivalLoss
from privlearn.losses.poisson_sampled import PoissonSampled as PoissonSampled
from privlearn.losses.poisson_sampled import TruncatedPoisson as TruncatedPoisson
from privlearn.losses.pure import BoundedRangeLoss as BoundedRangeLoss
from privlearn.losses.pure import LaplaceLoss as LaplaceLoss
from privlearn.losses.pure import PureLoss as PureLoss
from privlearn.losses.pure import RandomizedResponse as RandomizedResponse
from privlearn.losses.selected import SelectedLoss as SelectedLoss
from privlearn.losses.selection import RepeatAndSelect as RepeatAndSelect
from privlearn.losses.stated import ApproxLoss as ApproxLoss
from privlearn.losses.stated import RenyiCurve as RenyiCurve
from privlearn.losses.stated import ZCDPLoss as ZCDPLoss
from privlearn.losses.subsampled import SubsampledGaussian as SubsampledGaussian
from privlearn.losses.subsampled import sampled_gaussian_loss as sampled_gaussian_loss
from privlearn.losses.visits import VisitsLoss as VisitsLoss
from privlearn.losses.visits import each_visit as each_visit
from privlearn.losses.visits import has_visits as has_visits
from privlearn.losses.visits import without_visits as without_visits
