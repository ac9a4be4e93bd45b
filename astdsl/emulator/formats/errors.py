"""The one error of this package: a field, descriptor or shape that the hardware does not accept."""

__all__ = ["FormatError"]


class FormatError(ValueError):
    """Report a bit pattern or a field outside the documented format.

    Whoever executes an instruction turns it into a fault with the PTX line.
    """
