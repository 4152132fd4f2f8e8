"""The allocations that hpcdl runs in, and the pilots that hold more of them."""
