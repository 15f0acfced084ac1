"""One planted bug."""

from collections import namedtuple

# suite: the program moe64_<suite>, or python; tests: a filter of GoogleTest, or files and -k of pytest, as narrow as time
# asks for; needs: what the CPU must have to run the code at all, as Linux calls it.
Mutant = namedtuple("Mutant", "name file old new suite tests needs", defaults=("",))
