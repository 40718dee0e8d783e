"""What the code location of this repository consists of; ``dg`` finds it here."""
