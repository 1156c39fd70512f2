"""Integers that are not known until the model runs: polynomials over sizes and values.

A dimension ``B`` of an input and ``Shape(x)[0]`` are the same number; ``2*B + 1`` is never negative. Such statements
need no more than sums and products of named unknowns, so that is all there is here.
"""

from __future__ import annotations

from dataclasses import dataclass

Monomial = tuple[str, ...]


@dataclass(frozen=True)
class Expr:
    """A polynomial with integer coefficients. ``terms`` maps sorted monomials to non-zero coefficients.

    Unknowns are strings: ``dim:...`` is a size and never negative, ``val:...`` is any integer.
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: int | Expr) -> Expr:
        if isinstance(value, Expr):
            return value
        return Expr((((), int(value)),)) if value else Expr(())

    @staticmethod
    def dim(name: str) -> Expr:
        """An unknown size."""
        return Expr((((f"dim:{name}",), 1),))

    @staticmethod
    def value(name: str) -> Expr:
        """An unknown integer."""
        return Expr((((f"val:{name}",), 1),))

    @property
    def constant(self) -> int | None:
        """The number, when it is one."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def nonnegative(self) -> bool:
        """Whether this is 0 or more whatever the sizes are."""
        return all(c > 0 and all(u.startswith("dim:") for u in m) for m, c in self.terms)

    @property
    def positive(self) -> bool:
        """Whether this is 1 or more whatever the sizes are."""
        return self.nonnegative and any(not m for m, _ in self.terms)

    def __add__(self, other: int | Expr) -> Expr:
        return _collect([*self.terms, *Expr.of(other).terms])

    def __sub__(self, other: int | Expr) -> Expr:
        return self + Expr.of(other) * -1

    def __mul__(self, other: int | Expr) -> Expr:
        return _collect(
            [(tuple(sorted((*a, *b))), c * d) for a, c in self.terms for b, d in Expr.of(other).terms],
        )

    def estimate(self, nominal: int, further: int | None = None) -> int:
        """The value when every unknown is ``nominal``: only for costs.

        With ``further``, that is what all but the first unknown of a product are taken to be: sizes that are multiplied
        are seldom all large.
        """
        total = 0
        for monomial, coefficient in self.terms:
            if monomial:
                coefficient *= nominal * (nominal if further is None else further) ** (len(monomial) - 1)
            total += coefficient
        return max(total, 0)

    def __str__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            name = "*".join(u.split(":", 1)[1] for u in monomial)
            parts.append(str(coefficient) if not name else name if coefficient == 1 else f"{coefficient}*{name}")
        return "+".join(parts) or "0"


ONE = Expr.of(1)


def product(factors: list[Expr] | tuple[Expr, ...]) -> Expr:
    """The product of all factors (1 of none)."""
    result = ONE
    for factor in factors:
        result = result * factor
    return result


def broadcast_dim(a: Expr, b: Expr) -> Expr | None:
    """The size that two broadcast together to; None when that cannot be told."""
    if a == b or b == ONE:
        return a
    if a == ONE:
        return b
    for one, other in ((a, b), (b, a)):
        if one.constant is not None and one.constant != 1 and other.constant is None:
            return one  # the other has to be the same, or 1
    return None


def _collect(terms: list[tuple[Monomial, int]]) -> Expr:
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    return Expr(tuple(sorted((m, c) for m, c in sums.items() if c)))
