"""Ordinary words for prompts that must be text. In most tokenizers each, with the space before it, is one token."""

from __future__ import annotations

import numpy as np

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years where much your way down
should because long each just state people those too mr how little good world make very year still see own
work men day get here old life both between being under three never know same last another while us might
great go come since against right came take used himself few house use place during high without again home
around small however found mrs part school thought went say general once upon war every does got united left
number course until always away public something fact water less though far put head think called set almost
enough end took night yet better eyes system nothing give going
"""
WORDS = tuple(_TEXT.split())


def words(random: np.random.Generator, count: int) -> str:
    """`count` of them, separated by spaces."""
    return " ".join(WORDS[place] for place in random.integers(len(WORDS), size=count).tolist())
