"""What the default model says of examples/dog.jpg; new weights change it here alone."""

CAPTION = "a brown and black dog is standing in the grass"
SENTENCE = f"{CAPTION[0].upper()}{CAPTION[1:]}."
CONFIDENCE = 0.8503  # as JSON has it
