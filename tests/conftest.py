"""For all tests."""

import signal

# A CI that starts us in the background has these ignored, and every process that a test starts would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
