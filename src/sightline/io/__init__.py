"""Files in and out: photos, atomic writes, progress, model folders and the hub."""
