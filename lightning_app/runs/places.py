"""What of a configuration decides only where and how fast a run computes, not what: one list for all who compare runs."""

__all__ = ["PLACES", "PLACE_OPTIONS"]

# Options that a user may add to a run that something else has planned.
PLACE_OPTIONS = (
    *("trainer.accelerator", "trainer.devices", "trainer.strategy", "trainer.num_nodes", "trainer.logger"),
    *("model.backend", "model.compile", "model.channels_last"),
    *("save_checkpoint.every_n_epochs", "save_checkpoint.keep_every_n_epochs"),
    *(f"data.init_args.{key}" for key in ("eval_batch_size", "compile", "channels_last")),
)
# Beginnings of keys that may differ between seeds of one thing: these, the seed, and what a run says of itself.
PLACES = (
    *PLACE_OPTIONS,
    *("model.seeds", "seed_everything", "run.", "ckpt_path", "save_checkpoint.", "data.init_args.root"),
    *("trainer.enable_", "trainer.log_every_n_steps"),
)
