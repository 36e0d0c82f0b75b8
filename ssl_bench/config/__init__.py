"""The configuration: ``with_hydra`` and ``compose`` make it, ``schema`` types and checks it, ``identity`` names a run,
and ``build`` turns its nodes into objects."""
