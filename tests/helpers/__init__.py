"""What several tests of the library share, beside `testing`: fake checkpoints, pages in a browser, recorders."""
