"""What can go wrong."""


class CroupierError(Exception):
    """A call or a sequence was refused; the message says why."""


class RowError(CroupierError):
    """Some rows have no token. Their sequences are as they were; the others have theirs."""

    def __init__(self, failures: dict[int, str]) -> None:
        super().__init__("; ".join(f"sequence {sequence}: {why}" for sequence, why in failures.items()))
        self.failures = failures
        """Why, by the sequence's id."""


class LogitsLost(CroupierError):
    """The server went away with the region before it answered: write the logits again and send the step again."""
