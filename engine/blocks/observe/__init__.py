"""What others see of the pool: the log of its events, and what is made from that log alone.

events.py  the numbered log           mirror.py      the pool's state, rebuilt elsewhere
meter.py   who pays for which block   shadow.py      what other policies would hold
                                      accounting.py  meter and shadows of one engine
"""
