"""The configuration: ``schema`` types and checks it, ``with_hydra`` and ``compose`` make it, ``identity`` names a run,
and ``build`` turns its nodes into objects."""
