"""From photos to captions: the captioner, its confidence and its retrieval datastore."""
