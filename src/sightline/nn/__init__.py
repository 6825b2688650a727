"""The networks: encoders, decoders, and the caption model that joins them. Needs torch."""
