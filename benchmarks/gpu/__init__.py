"""What a GPU makes of the application, in one command that stops in time and goes on where it stopped.

    python -m benchmarks.gpu --root data --out results-gpu               all that fits into 9.5 minutes; again for the rest
    python -m benchmarks.gpu --root data --out results-gpu --only kernels --minutes 3
    python -m benchmarks.gpu --device cpu --quick --out /tmp/tried       the scripts at tiny sizes, where there is no GPU

Needs CIFAR-10 as ``cifar10/train_images.npy`` (and its three sisters) below ``--root``, and a C compiler for torch.compile.
``runs`` needs all that training does, and is left, with a list, where some of it is not here; the other parts need neither
jsonargparse nor wandb nor curvlinops.
Parts, by importance, each a module and a command of its own:

* ``roofline``: what the device can do: copying, multiplying. Shares below are of what was measured in the same process.
* ``steps``: a training step: eager, our CUDA graph, banks of 1, 13 and 26 nets, the whole step in a graph.
* ``epochs``: the same through Lightning, and against the script that is usual.
* ``kernels``: the convolutions of the step, shape by shape, by every way to compute those of many nets.
* ``alone``: is a member of a bank the net trained alone?
* ``measuring``: what is measured after an epoch, against the epoch.
* ``runs``: Table 1 at depth 20 and Fig. 2 at paper scale, as far as time allows; runs stay in ``--work``.

A finished part leaves ``gpu.<part>.json`` in ``--out`` and is not measured again; one under way leaves
``gpu.<part>.unfinished.json`` with the comparisons that it has finished. Either is of one commit, GPU and torch, and begun
anew for others. Nothing else lies there but ``summary.json``.

There is no Triton kernel, and none should be written before ``kernels`` shows that it can win. ``convolutions`` in its file
has, for each bank, the time of a step's convolutions by the best library kernels, and what they would take at the
roofline. Grant a kernel of our own 70 % of the roofline: only where (best - roofline / 0.7) is at least 23 % of the same
bank's step in ``steps`` could it make the step 1.3 times faster. It stays only if it then does, with the torch path as
its reference and fallback.
"""
