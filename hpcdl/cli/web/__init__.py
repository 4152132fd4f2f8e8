"""`hpcdl web`: the pages of `hpcdl page`, live and read-only, for their owner's browser.

`command` says where it listens, `server` lets nobody else in, `sessions` has one-time links and cookies, `pages` asks
the daemon and draws. It is a client of the daemon like any command: it holds the owner's token and answers GET only.
"""
