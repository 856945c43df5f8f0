"""Episodes that another program runs: arrays (`Writer`) and steps of an environment (`Recorder`), as a dataset."""
