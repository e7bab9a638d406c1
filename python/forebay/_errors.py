"""Exceptions by what the caller must do. Each is a `forebay.Error` and, where there is one, Python's own kind."""


class Error(Exception):
    """Anything that Forebay has to complain about: one line that names the object and the remedy."""


class NotFoundError(Error, FileNotFoundError):
    """The named thing does not exist: correct the name."""


class InvalidError(Error, ValueError):
    """The request is wrong as it stands: correct it."""


class NoBufferError(InvalidError, BufferError):
    """Memory cannot be handed over as it was asked for: what the array protocols raise."""


class DeniedError(Error, PermissionError):
    """The caller may not do this: correct the credentials or the settings."""


class RetryError(Error, ConnectionError):
    """Nothing is wrong with the request: try again later."""


class CorruptError(Error):
    """Data failed its checks: the source or a disk is damaged."""


class ChangedError(Error):
    """An object or a dataset is no longer the version that was opened or saved."""


class FullError(Error):
    """There is no room: free some, or raise the limit."""


class ClosedError(Error):
    """What was used is closed, or belongs to another process."""
