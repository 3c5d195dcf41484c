"""The packed file: operations, program, bits."""
