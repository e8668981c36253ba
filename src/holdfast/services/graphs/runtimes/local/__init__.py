"""Graph servers as child processes on this machine, each under a supervisor that outlives the program that started it.

runtime.py      the interface of runtimes: start here      folders.py   the folder of one start: what is in it, and who runs
supervisor.py   the program that runs, watches and ends one graph server (standard library only)
"""
