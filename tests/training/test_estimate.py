"""The advice for a step that does not fit into a GPU's memory."""

from ssl_bench.training.estimate import out_of_memory


def test_the_advice_names_the_largest_chunk_that_fits() -> None:
    gib = 2**30
    advice = out_of_memory(1024, 8, 15 * gib, 16 * gib, 6 * gib, 0.1 * gib)
    assert "15.0 of the GPU's 16.0 GiB" in advice and "about 102 MiB" in advice
    assert "batch_size.chunk=256," in advice  # 32 of a rank's 128 images: 64 would take 6.4 GiB
    assert "batch_size.chunk or batch_size.size" in out_of_memory(8, 8, gib, gib, 0, 0.1 * gib)
