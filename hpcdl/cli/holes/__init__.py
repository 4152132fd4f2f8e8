"""`hpcdl holes`: what idles in the batch system now, and what has idled for weeks."""
