"""The verbs of the command ``sdm``, a module each: parse, call, print."""
