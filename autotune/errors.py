"""What a user can fix. These reach the terminal as one message without a traceback; anything else is a bug.

Exit codes (docs/cli.md): 2 user input, 3 no valid trial, 4 environment, 130 interrupted.
"""

from __future__ import annotations


class VtuneError(Exception):
    """A failure with a remedy. `str()` of it is the whole message for the user."""

    exit_code = 1


class UserError(VtuneError):
    """Input that can't be used: names file, key, value and remedy, as far as each is known."""

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        file: object = None,
        key: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        self.problem, self.file, self.key, self.value, self.remedy = problem, file, key, value, remedy
        where = ": ".join(str(part) for part in (file, key) if part is not None)
        text = f"{where}: {problem}" if where else problem
        if value is not None:
            text += f" (got {value!r})"
        if remedy:
            text += f". {remedy[0].upper()}{remedy[1:]}"
        super().__init__(text)

    def at(self, file: object) -> UserError:
        """The same error, with the file that the one who raised it didn't know."""
        return UserError(self.problem, file=file, key=self.key, value=self.value, remedy=self.remedy)


class NoValidTrial(VtuneError):
    """The search ended without one valid measurement."""

    exit_code = 3


class EnvironmentProblem(VtuneError):
    """The machine lacks something: no GPU, no vLLM, a hub out of reach."""

    exit_code = 4
