"""The paper's learner: its equations as printed, and the fast forms that equal them."""
