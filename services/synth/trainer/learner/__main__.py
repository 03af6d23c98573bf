"""`python -m synth.trainer.learner`: one training process, which imports what it needs itself."""

from synth.runtime.startup import collector_off

if __name__ == "__main__":
    with collector_off():
        from synth.trainer.learner.main import main, warm_up

        warm_up()
    main()
