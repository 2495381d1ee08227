from timeslice.cli.main import run

run()
