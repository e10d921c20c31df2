"""Declared lists of private runs, priced without running them."""

from privlearn.events.lists import EventList, event_list, read_event_list

__all__ = ["EventList", "event_list", "read_event_list"]
