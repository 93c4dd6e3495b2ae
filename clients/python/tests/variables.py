"""Variables of the environment, for a block."""

import os


class environment:
    """Sets variables for a block."""

    def __init__(self, **variables):
        self.variables = variables

    def __enter__(self):
        self.before = dict(os.environ)
        os.environ.update(self.variables)

    def __exit__(self, *_):
        os.environ.clear()
        os.environ.update(self.before)
