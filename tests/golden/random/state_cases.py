"""The rows of cases.py for families with Mamba-2 or a short convolution."""

from common import BIAS, FULL, GELU, LINEAR, ROPES, TIED, Case, Change, activations, dense, flags, free, pick, tokens, unlike
from family_groups.mamba import CONV, MLP, MOE, states_and_experts

TAPS = (2, 3, 4, 7)


def divisors(n, most):
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def heads_of(rng, inner):
    """Heads, their width and their groups for so many values of a state."""
    n_heads = int(pick(rng, *(d for d in divisors(inner, 24) if inner // d <= 64)))
    return n_heads, inner // n_heads, int(pick(rng, *divisors(n_heads, 4)))


def factors(rng, n):
    """Powers of two: a GGUF holds their products with weights of bf16."""
    return [float(2.0 ** rng.integers(-2, 3)) for _ in range(n)]


def mixed(rng, c, *kinds):
    """Kinds in any order; the first is there always."""
    return [kinds[0], *(pick(rng, *kinds) for _ in range(c["num_hidden_layers"]))]


def with_kinds(rng, c, *kinds):
    layers = mixed(rng, c, *kinds)
    return c | dict(layer_types=layers, num_hidden_layers=len(layers))


def all_of(kind):
    return Change(lambda rng, c: dict(layer_types=[kind] * c["num_hidden_layers"]))


def mamba2_sizes(rng):
    c = tokens(rng) | dict(hidden_size=int(rng.integers(6, 30)), num_hidden_layers=int(rng.integers(1, 5)))
    expand = int(pick(rng, 1, 2, 3))
    n_heads, dim, groups = heads_of(rng, expand * c["hidden_size"])
    return c | dict(num_heads=n_heads, head_dim=dim, n_groups=groups, expand=expand, state_size=int(pick(rng, 4, 7, 16)),
                    conv_kernel=int(pick(rng, *TAPS)), layer_norm_epsilon=float(pick(rng, 1e-5, 1e-3)))


def granite_sizes(rng):
    c = with_kinds(rng, dense(rng), LINEAR, FULL)
    expand = int(pick(rng, 1, 2, 3))
    n_heads, dim, groups = heads_of(rng, expand * c["hidden_size"])
    return c | dict(
        mamba_n_heads=n_heads, mamba_d_head=dim, mamba_n_groups=groups, mamba_expand=expand, mamba_d_state=int(pick(rng, 4, 7, 16)),
        mamba_d_conv=int(pick(rng, *TAPS)), num_local_experts=0, shared_intermediate_size=c["intermediate_size"],
        embedding_multiplier=2.5, logits_scaling=4.0, residual_multiplier=0.3, attention_multiplier=0.2)


def some_experts(key, width, refused="", **more):
    return Change(lambda rng, c: {key: 5, "num_experts_per_tok": int(pick(rng, 1, 2, 5)), width: int(rng.integers(5, 60))} | more, refused)


def nemotron_sizes(rng):
    c = unlike(dense, "num_hidden_layers", "rope_parameters", "rms_norm_eps")(rng)
    groups = int(pick(rng, 1, 2, 3))
    kinds = mixed(rng, dict(num_hidden_layers=int(rng.integers(1, 5))), LINEAR, FULL, MLP)
    return c | dict(
        layers_block_type=kinds, layer_norm_epsilon=float(pick(rng, 1e-5, 1e-3)), n_groups=groups,
        mamba_num_heads=groups * int(pick(rng, 1, 2, 3)), mamba_head_dim=int(pick(rng, 5, 8, 12)), ssm_state_size=int(pick(rng, 4, 7, 16)),
        conv_kernel=int(pick(rng, *TAPS)))


def nemotron_experts(**more):
    def settings(rng, c):
        kinds = [LINEAR, MOE, *(pick(rng, LINEAR, FULL, MOE) for _ in range(3))]
        return dict(layers_block_type=kinds, n_routed_experts=5, num_experts_per_tok=int(pick(rng, 1, 2, 5)), n_group=1, topk_group=1,
                    moe_intermediate_size=int(rng.integers(5, 60)), moe_shared_expert_intermediate_size=int(rng.integers(5, 60)),
                    routed_scaling_factor=1.5) | more
    return settings


def falcon_sizes(rng):
    c = dense(rng)
    groups = int(pick(rng, 1, 2, 3))
    n_heads, dim = groups * int(pick(rng, 1, 2, 3)), int(pick(rng, 5, 8, 12))
    return c | dict(
        mamba_d_ssm=n_heads * dim, mamba_n_heads=n_heads, mamba_d_head=dim, mamba_n_groups=groups, mamba_d_state=int(pick(rng, 4, 7, 16)),
        mamba_d_conv=int(pick(rng, *TAPS)), mamba_rms_norm=True, mamba_norm_before_gate=False, **dict(zip(FACTORS, factors(rng, 7))),
        mlp_multipliers=factors(rng, 2), ssm_multipliers=factors(rng, 5))


FACTORS = ("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
           "ssm_in_multiplier", "ssm_out_multiplier")  # fmt: skip


def odd_factors(rng, c):
    return {key: float(rng.uniform(0.3, 1.7)) for key in FACTORS} | {
        "mlp_multipliers": rng.uniform(0.3, 1.7, 2).tolist(), "ssm_multipliers": rng.uniform(0.3, 1.7, 5).tolist()}


def lfm2_sizes(rng):
    c = with_kinds(rng, free(rng, norm_eps=float(pick(rng, 1e-5, 1e-3))), CONV, FULL)
    return c | dict(conv_L_cache=int(pick(rng, *TAPS)), block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.25,
                    block_multiple_of=int(pick(rng, 1, 3, 8)))


def lfm2moe_sizes(rng):
    c = with_kinds(rng, free(rng, norm_eps=float(pick(rng, 1e-5, 1e-3))), CONV, FULL)
    n = int(rng.integers(3, 9))
    return c | dict(conv_L_cache=int(pick(rng, *TAPS)), num_dense_layers=1, num_experts=n, num_experts_per_tok=int(rng.integers(1, 4)),
                    moe_intermediate_size=int(rng.integers(5, 60)))


def refused(change, key):
    return Change(change, key)


RECURRENT = {"no attention": all_of(LINEAR), "attention alone": all_of(FULL)}
CONVS = {"no attention": all_of(CONV), "attention alone": all_of(FULL), "biases": refused(dict(conv_bias=True), "conv_bias")}
RENORM = {"renormalised": Change(dict(norm_topk_prob=True)), "as they are": Change(dict(norm_topk_prob=False))}


def may_refuse(changes, keys):
    return {name: Change(change.settings, keys) for name, change in changes.items()}


STATE_CASES = {
    "mamba2": Case("Mamba2ForCausalLM", mamba2_sizes, TIED | {
        "one group": Change(dict(n_groups=1)), "a group a head": Change(lambda rng, c: dict(n_groups=c["num_heads"])),
        "one head": Change(lambda rng, c: dict(num_heads=1, head_dim=c["expand"] * c["hidden_size"], n_groups=1)),
        "heads of one": Change(lambda rng, c: dict(num_heads=c["expand"] * c["hidden_size"], head_dim=1)),
        "state of one": Change(dict(state_size=1)), "no convolution bias": Change(dict(use_conv_bias=False)),
        "biases": refused(dict(use_bias=True), "use_bias"), "act": refused(dict(hidden_act="gelu"), "hidden_act"),
        "limit": refused(dict(time_step_limit=(0.0, 0.5)), "time_step_limit"), "pieces of 5": Change(dict(chunk_size=5)),
        "norm's key": Change(dict(rms_norm=False)), "f16 residual": Change(dict(residual_in_fp32=False))},
        "mamba2", ("tied", "untied", "one group", "a group a head", "no convolution bias"), edit=states_and_experts,
        wide=dict(hidden_size=64, expand=3, num_heads=16, head_dim=12, n_groups=4)),
    "granitehybrid": Case("GraniteMoeHybridForCausalLM", granite_sizes, TIED | RECURRENT | BIAS | {
        "rope": Change(dict(position_embedding_type="rope")),
        "yarn": Change(lambda rng, c: dict(position_embedding_type="rope") | ROPES["yarn"].settings(rng, c)),
        "linear": Change(lambda rng, c: dict(position_embedding_type="rope") | ROPES["linear"].settings(rng, c)),
        "experts": some_experts("num_local_experts", "intermediate_size"),
        "experts, none shared": some_experts("num_local_experts", "intermediate_size", "shared_mlp", shared_intermediate_size=0),
        "one group": Change(dict(mamba_n_groups=1)), "no convolution bias": Change(dict(mamba_conv_bias=False)),
        "projection biases": refused(dict(mamba_proj_bias=True), "mamba_proj_bias"), "pieces of 5": Change(dict(mamba_chunk_size=5)),
        "no factors": Change(dict(embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0, attention_multiplier=1.0))}
        | may_refuse(GELU, "hidden_act"),
        "granitehybrid", ("tied", "untied", "rope", "experts", "one group"), edit=states_and_experts,
        wide=dict(mamba_expand=2, mamba_n_heads=12, mamba_d_head=12, mamba_n_groups=2, layer_types=[LINEAR, FULL])),
    "nemotron_h": Case("NemotronHForCausalLM", nemotron_sizes, TIED | activations("mlp_hidden_act") | {
        "no attention": Change(dict(layers_block_type=[LINEAR, MLP])), "attention alone": Change(dict(layers_block_type=[FULL, MLP, FULL])),
        "mixers alone": Change(dict(layers_block_type=[LINEAR, FULL, LINEAR])), "dense alone": Change(dict(layers_block_type=[MLP, MLP])),
        "experts": Change(nemotron_experts()), "as they are": Change(nemotron_experts(norm_topk_prob=False)),
        "two shared": Change(nemotron_experts(n_shared_experts=2)),
        "groups": refused(nemotron_experts(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3), "n_group"),
        "latent experts": refused(nemotron_experts(moe_latent_size=8), "moe_latent_size"),
        "one group": Change(dict(n_groups=1)), "no convolution bias": Change(dict(use_conv_bias=False)),
        "act": refused(dict(mamba_hidden_act="gelu"), "mamba_hidden_act"), "pieces of 5": Change(dict(chunk_size=5)),
        "limit": refused(dict(time_step_limit=(0.0, 0.5)), "time_step_limit")}
        | may_refuse(BIAS, "attention_bias") | may_refuse(flags("mlp_bias"), "mlp_bias") | may_refuse(flags("use_bias"), "use_bias"),
        "nemotron_h", ("tied", "untied", "one group", "no convolution bias"), edit=states_and_experts,
        wide=dict(layers_block_type=[LINEAR, FULL, MLP], mamba_num_heads=16, mamba_head_dim=9, n_groups=4)),
    "falcon_h1": Case("FalconH1ForCausalLM", falcon_sizes, TIED | ROPES | {
        "bare": Change(dict(mamba_rms_norm=False)), "norm first": Change(dict(mamba_norm_before_gate=True)),
        "one group": Change(dict(mamba_n_groups=1)), "odd factors": Change(odd_factors), "odd factors, norm first": Change(
            lambda rng, c: odd_factors(rng, c) | dict(mamba_norm_before_gate=True)),
        "no convolution bias": Change(dict(mamba_conv_bias=False)), "pieces of 5": Change(dict(mamba_chunk_size=5)),
        "limit": refused(dict(time_step_limit=(0.0, 0.5)), "time_step_limit")}
        | may_refuse(BIAS, "attention_bias") | may_refuse(GELU, "hidden_act")
        | {key: refused({key: True}, key) for key in ("mlp_bias", "mamba_proj_bias", "projectors_bias")},
        "falcon_h1", ("untied", "bare", "one group", "no convolution bias"), edit=states_and_experts,
        wide=dict(mamba_d_ssm=144, mamba_n_heads=12, mamba_d_head=12, mamba_n_groups=2)),
    "lfm2": Case("Lfm2ForCausalLM", lfm2_sizes, TIED | CONVS | ROPES | {
        "width as it is": Change(dict(block_auto_adjust_ff_dim=False)),
        "attention by number": Change(lambda rng, c: dict(layer_types=None, full_attn_idxs=[c["num_hidden_layers"] - 1]))},
        "lfm2", ("tied", "untied"), wide=dict(hidden_size=136, layer_types=[CONV, FULL])),
    "lfm2moe": Case("Lfm2MoeForCausalLM", lfm2moe_sizes, TIED | CONVS | RENORM | ROPES | {
        "no bias of choice": Change(dict(use_expert_bias=False)), "scaled": Change(dict(routed_scaling_factor=2.5)),
        "no dense": Change(dict(num_dense_layers=0)), "all dense": Change(lambda rng, c: dict(num_dense_layers=c["num_hidden_layers"])),
        "all experts": Change(lambda rng, c: dict(num_experts_per_tok=c["num_experts"]))},
        "lfm2moe", ("tied", "no dense"), edit=states_and_experts, wide=dict(hidden_size=136, layer_types=[CONV, FULL])),
}
