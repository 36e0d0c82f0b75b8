"""The configuration: ``schema`` types and checks it, ``compose`` makes it with Hydra, ``identity`` names a run by it,
and ``build`` turns its nodes into objects."""
