"""The exceptions of thalweg."""

from __future__ import annotations


class ThalwegError(RuntimeError):
    """The base of the errors of devices."""


class DeviceError(ThalwegError):
    """A device failed, or cannot be used here."""


class ForkedError(DeviceError):
    """This process was forked after thalweg opened a device, which the child cannot use."""


class CaptureError(ThalwegError):
    """The stream captures a graph, which the work of this call would become a part of."""


class OutOfMemoryError(MemoryError):
    """A device or a budget has no room."""


class DecodeError(ValueError):
    """A file is broken, or of a kind that is not decoded.

    ``index`` is its place among the files, and ``name`` its path if it has one.
    """

    index: int = -1
    name: str | None = None
