"""Prompts of random token ids, another one each time, so that nothing is shared between them."""

import random

FIRST_ID, LAST_ID = 1000, 28000  # ordinary tokens of both models


class Prompts:
    def __init__(self, n_tokens, seed=1):
        self.n_tokens, self.rng = n_tokens, random.Random(seed)

    def next(self):
        return [self.rng.randint(FIRST_ID, LAST_ID) for _ in range(self.n_tokens)]
