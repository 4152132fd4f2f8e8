"""The pure core: values in, values out. No clock, file, socket, process or thread."""
