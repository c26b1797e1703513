"""Every tolerance of the tests, with its reason. Relative to the largest entry."""

# The bar of the project: recursion against a dense float64 solve, condition below 1e5.
CLOSED_FORM = 1e-9
# The same sums in another order, float64.
REORDERED = 1e-12
# One step in float32 of a problem with condition about 1e3.
SINGLE = 2e-3
# Finite formulas evaluated in float64 on both sides.
FORMULA = 1e-13
# Accuracies are ratios of counts held in float32 or float64.
COUNTS = 1e-6
# Derivatives against central differences of fourth order, step 1e-3, float64.
DERIVATIVE = 1e-5
# The bar for several devices: the same sums in another order, through a whole stream.
SHARDED = 1e-9
# Normal equations of condition 1e9, the most that lambda chosen by cross-validation leaves.
LEAST_LAMBDA = 1e-5
# The bar for sums made by several workers: one machine's readout, float64.
MACHINES = 1e-10
# Probabilities of an ONNX runtime, double and single: other products and exponentials, and a power
# of up to 64 above them. The bar of the project is 1e-5.
GRAPH = 1e-12
GRAPH_SINGLE = 1e-5
