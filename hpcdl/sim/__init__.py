"""The simulator: the daemon's own Controller on a virtual clock, with modelled trainers."""
