"""`python -m synth.trainer.learner`: one training process, which does its own imports."""

from synth.runtime.startup import collector_off

if __name__ == "__main__":
    with collector_off():
        from synth.trainer.learner.main import main, warm_up

        warm_up()
    main()
