"""Which holes of the batch system to take, and with which pilots. Pure: values in, values out."""
