"""What help() says of the operators' arguments: of each function those that it has."""

from __future__ import annotations

import inspect

_ARGUMENTS = {
    "q": "[B, T, H, K], float32 or bfloat16, on a CPU or a GPU",
    "k": "[B, T, H, K]",
    "v": "[B, T, HV, V]; HV is a multiple of H, and value head h reads query and key head h / (HV / H)",
    "g": "[B, T, HV], logarithms of the decays, so at most 0",
    "g_gamma": "[HV], logarithms of decays that all tokens share; instead of g",
    "beta": "[B, T, HV], how much is written",
    "lamb": "[B, T, HV], how much of q joins k in what is read and corrected",
    "gk": "not supported: there is one decay for each head, g",
    "gv": "not supported: there is one decay for each head, g",
    "scale": "of the outputs; K^-1/2 unless it is given",
    "initial_state": "[N, HV, K, V]; zeros unless they are given",
    "output_final_state": "whether the states on exit are returned",
    "use_qk_l2norm_in_kernel": "divide q and k by sqrt(their squares' sum + 1e-6) first",
    "use_gate_in_kernel": "g is what the gate is made of: -exp(A_log) softplus(g + dt_bias)",
    "A_log": "[HV], with use_gate_in_kernel",
    "dt_bias": "[HV], with use_gate_in_kernel; zeros unless they are given",
    "use_beta_sigmoid_in_kernel": "beta is what the gate is made of: sigmoid(beta)",
    "allow_neg_eigval": "2 sigmoid(beta), with use_beta_sigmoid_in_kernel",
    "normalize": "divide outputs by scale q.z, z the sum of the keys so far; states are pairs of S and z [N, 1, H, K] then",
    "reverse": "not supported: sequences are read from the front",
    "state_v_first": "states are [N, HV, V, K]",
    "cu_seqlens": "N + 1 offsets of sequences that are packed along T; B is 1 then, otherwise N is B",
    "cu_seqlens_cpu": "cu_seqlens in the memory of the CPU, so that nothing is fetched from a GPU",
    "chunk_indices": "taken, and not needed",
    "cp_context": "not supported",
    "kwargs": "chunk_size is taken, and is 64 here; anything else is refused",
}
_RETURNS = "Returns the outputs [B, T, HV, V], of the type of v, and the states on exit [N, HV, K, V], float32, or None."


def explained(function):
    """The function, its documentation with a line for every argument."""
    lines = [f"    {name}: {_ARGUMENTS[name]}" for name in inspect.signature(function).parameters if name in _ARGUMENTS]
    function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__), "", *lines, "", _RETURNS])
    return function
