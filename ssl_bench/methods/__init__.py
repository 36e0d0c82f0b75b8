"""Training methods: the networks of a run and the objective on their outputs, one class per family.
Read base, contrastive and siamese; then densecl, npid, cld with kmeans; supervised, exemplar and vae are controls."""
