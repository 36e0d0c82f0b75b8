"""Training methods: the networks of a run and the objective on their outputs, one class per family.
Read base, siamese and supervised; then npid, cld with kmeans, inv_spread, exemplar and vae, each on its own."""
