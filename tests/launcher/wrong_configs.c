/* One of each kind of mistake in a config or on a command line: exit code 2, one line on stderr
 * that names the place and the key, nothing on stdout, no run folder. mpirun is not on PATH here:
 * what is found before any rank starts cannot have needed it. What rows of options say of values
 * in general, the mesh's alias, layouts and orders of compute have tests of their own in core/,
 * parallel/ and schedule/; here is one of each. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

/* Cases replace a part of it; line and column are counted in what comes out. */
static const char good_config[] = "{\n"
                                  "  \"model\": {\n"
                                  "    \"num_layers\": 2,\n"
                                  "    \"hidden_size\": 16,\n"
                                  "    \"ffn_hidden_size\": 32,\n"
                                  "    \"num_attention_heads\": 4,\n"
                                  "    \"num_query_groups\": 2,\n"
                                  "    \"seq_length\": 12,\n"
                                  "    \"num_experts\": 4,\n"
                                  "    \"moe_router_topk\": 2\n"
                                  "  },\n"
                                  "  \"parallel\": {\n"
                                  "    \"tensor_model_parallel_size\": 1,\n"
                                  "    \"expert_binding\": \"dp\"\n"
                                  "  },\n"
                                  "  \"train\": {\n"
                                  "    \"global_batch_size\": 4,\n"
                                  "    \"train_iters\": 2\n"
                                  "  },\n"
                                  "  \"data\": {\n"
                                  "    \"data_path\": \"corpus\"\n"
                                  "  },\n"
                                  "  \"device\": { \"peak_flops\": 1e9, \"num_threads\": 1 }\n"
                                  "}\n";

enum { MAX_WORDS = 9 };

/* weft train c.json --out run, with `from` in the config replaced by `to`. */
typedef struct mistake {
    const char *from, *to;
    const char *wanted; /* the line is this, or begins so, after "weft train: " */
} mistake;

static const mistake mistakes[] = {
    {"\"expert_binding\": \"dp\"",
     "\"use_distributed_optimizer\": true, \"data_parallel_sharding_strategy\": \"no_shard\"",
     "c.json:14:40: parallel.data_parallel_sharding_strategy: no_shard does not shard the "
     "optimizer's state, use_distributed_optimizer is true; leave one out"},
    /* --- the text of the file */
    {"\"num_layers\": 2,", "\"num_layer\": 2,",
     "c.json:3:5: model.num_layer: unknown key; did you mean model.num_layers?"},
    {"\"hidden_size\": 16", "\"hidden_size\": \"16x\"", "c.json:4:20: model.hidden_size: expected"},
    {"\"train_iters\": 2", "\"train_iters\": 2, \"recompute_modules\": [\"mlpp\"]",
     "c.json:18:23: train.recompute_modules: no module \"mlpp\"; did you mean mlp"},
    {"\"train_iters\": 2", "\"train_iters\": 2, \"offload_modules\": [\"bloc\"]",
     "c.json:18:23: train.offload_modules: no module \"bloc\"; did you mean block"},
    {"\"train_iters\": 2",
     "\"train_iters\": 2, \"fine_grained_activation_offloading\": true, \"offload_modules\": []",
     "c.json:18:67: train.offload_modules: none is named; there are core_attn, mlp, moe and block"},
    {"\"train_iters\": 2",
     "\"train_iters\": 2, \"fine_grained_activation_offloading\": true,\"offload_modules\": "
     "[\"core_attn\", \"mlp\"],\"recompute_granularity\": \"selective\", \"recompute_modules\": "
     "[\"mlp\"]",
     "c.json:18:66: train.offload_modules: mlp is recomputed: train.recompute_modules has it, too"},
    {"\"train_iters\": 2",
     "\"train_iters\": 2, \"fine_grained_activation_offloading\": true,\"recompute_granularity\": "
     "\"full\"",
     "c.json:18:23: train.fine_grained_activation_offloading: layers that "
     "train.recompute_granularity full makes again keep nothing to offload"},
    {"\"num_layers\": 2", "\"num_layers\": 0", "c.json:3:19: model.num_layers: 0 is out of range"},
    {"\"num_threads\": 1 }\n}\n", "\"num_threads\": 1 }\n",
     "c.json:1:1: not valid JSON: this '{' is never closed"},
    {good_config, "", "c.json:1:1: not valid JSON: "},
    /* --- the model */
    {"\"num_attention_heads\": 4", "\"num_attention_heads\": 6",
     "c.json:6:5: model.num_attention_heads: hidden_size 16 does not divide by 6 heads; 4 or 8 "
     "would, or kv_channels\n"},
    {"\"num_query_groups\": 2", "\"num_query_groups\": 3",
     "c.json:7:5: model.num_query_groups: 4 heads do not divide by 3 query groups; 1, 2 or 4 "
     "would\n"},
    {"\"moe_router_topk\": 2", "\"moe_router_topk\": 5",
     "c.json:10:5: model.moe_router_topk: 5 experts a token, but there are only 4"},
    {"\"moe_router_topk\": 2", "\"moe_layer_freq\": [1, 0, 1]",
     "c.json:10:5: model.moe_layer_freq: 3 entries for 2 layers"},
    {"\"moe_router_topk\": 2", "\"moe_layer_freq\": [1, 2]",
     "c.json:10:5: model.moe_layer_freq: 2 is neither"},
    {"\"seq_length\": 12", "\"seq_length\": 12, \"max_position_embeddings\": 8",
     "c.json:8:23: model.max_position_embeddings: 8 positions for seq_length 12"},
    {"\"seq_length\": 12",
     "\"seq_length\": 12, \"position_embedding_type\": \"rope\", \"kv_channels\": 5",
     "c.json:8:58: model.kv_channels: rotary positions need an even head dimension, not 5"},
    {"\"hidden_size\": 16", "\"hidden_size\": 400000000000", "c.json:4:5: model.hidden_size: "},
    /* --- the mesh, in the file */
    {"\"tensor_model_parallel_size\": 1", "\"tensor_model_parallel_size\": 3",
     "c.json:13:5: parallel.tensor_model_parallel_size: num_attention_heads 4 does not divide by "
     "3; tp 1, 2 or 4 would\n"},
    {"\"tensor_model_parallel_size\": 1", "\"pipeline_model_parallel_size\": 3",
     "c.json:13:5: parallel.pipeline_model_parallel_size: 3 stages for 2 layers; pp 1 or 2 "
     "would\n"},
    {"\"tensor_model_parallel_size\": 1", "\"data_parallel_size\": 3",
     "c.json:17:5: train.global_batch_size: 4 does not divide by micro_batch_size 1 x dp 3; 3 or 6 "
     "would\n"},
    {"\"tensor_model_parallel_size\": 1", "\"sequence_parallel\": true",
     "c.json:13:5: parallel.sequence_parallel has no effect with tensor_model_parallel_size 1"},
    {"\"tensor_model_parallel_size\": 1", "\"order\": \"tp-pp-dp\"",
     "c.json:13:5: parallel.order 'tp-pp-dp': "},
    {"\"tensor_model_parallel_size\": 1", "\"expert_model_parallel_size\": 3",
     "c.json:13:5: parallel.expert_model_parallel_size 3 does not divide num_experts 4; ep 1, 2 or "
     "4 would\n"},
    {"\"tensor_model_parallel_size\": 1", "\"expert_tensor_parallel_size\": 2",
     "c.json:13:5: parallel.expert_tensor_parallel_size 2: 1 (experts whole) or "},
    {"\"tensor_model_parallel_size\": 1,\n    \"expert_binding\": \"dp\"",
     "\"expert_model_parallel_size\": 2,\n    \"expert_binding\": \"tp\"",
     "c.json:13:5: parallel.expert_model_parallel_size 2: expert_binding tp puts the experts on"},
    {"\"expert_binding\": \"dp\"", "\"expert_binding\": \"tp\", \"expert_tensor_parallel_size\": 2",
     "c.json:14:29: parallel.expert_tensor_parallel_size 2: with expert_binding tp every expert "
     "is"},
    /* --- batches, optimizer, data */
    {"\"train_iters\": 2", "\"micro_batch_size\": 3",
     "c.json:17:5: train.global_batch_size: 4 does not divide by micro_batch_size 3; 3 or 6 "
     "would\n"},
    {"\"train_iters\": 2", "\"lr\": 1e-4, \"min_lr\": 1e-3",
     "c.json:18:17: train.min_lr: 0.001 is above lr 0.0001"},
    {"\"train_iters\": 2", "\"precision\": \"fp16\"",
     "c.json:18:5: train.precision: fp16 needs device.kind \"cuda\""},
    {"\"train_iters\": 2", "\"initial_loss_scale\": 0.5",
     "c.json: train.min_loss_scale: 1 is above initial_loss_scale 0.5"},
    {"\"train_iters\": 2", "\"adam_beta1\": 0.99999999",
     "c.json:18:19: train.adam_beta1: 0.99999999 is out of range: 0 to 0.99999994"},
    {"\"train_iters\": 2", "\"lr\": 1e-46",
     "c.json:18:11: train.lr: 1e-46 is too small: 0 in single precision"},
    {"\"expert_binding\": \"dp\"\n  },\n  \"train\": {",
     "\"data_parallel_sharding_strategy\": \"optim_grads_params\"\n  },\n  \"train\": {\n"
     "    \"optimizer\": \"muon\",",
     "c.json:14:5: parallel.data_parallel_sharding_strategy: gradients that are sharded do not go "
     "with train.optimizer muon; optim would\n"},
    {"\"train_iters\": 2\n  },",
     "\"optimizer\": \"muon\"\n  },\n  \"offload\": { \"experts\": \"host\" },",
     "c.json:20:16: offload.experts: host does not go with train.optimizer muon, which steps "
     "matrices on the device; none would\n"},
    {"\"train_iters\": 2\n  },",
     "\"optimizer\": \"muon\"\n  },\n  \"offload\": { \"optimizer_state\": \"host\" },",
     "c.json:20:16: offload.optimizer_state: host does not go with train.optimizer muon, which "
     "steps matrices on the device; device would\n"},
    {"\"data_path\": \"corpus\"\n  },",
     "\"data_path\": \"corpus\"\n  },\n  \"checkpoint\": { \"load\": \"\" },",
     "c.json:23:19: checkpoint.load: \"\" names no checkpoint\n"},
    {"\"data_path\": \"corpus\"", "", "c.json: data.data_path: missing"},
    {"\"data_path\": \"corpus\"", "\"data_path\": \"corpse\"",
     "c.json:21:5: data.data_path: corpse.idx: No such file or directory"},
    {"\"data_path\": \"corpus\"", "\"mock_data\": true",
     "c.json: model.vocab_size: mock data needs one"},
    {"\"data_path\": \"corpus\"", "\"data_path\": \"corpus\", \"split\": \"9,a\"",
     "c.json:21:28: data.split: \"9,a\" is not one to three weights"},
    {"\"data_path\": \"corpus\"", "\"data_path\": \"corpus.bin\"",
     "c.json:21:5: data.data_path: corpus.bin: a dataset is named without .bin; corpus would\n"},
};

/* Mistakes that take words as well. */
static const struct {
    mistake in;
    const char *args[MAX_WORDS];
} clashes[] = {
    {{"\"seq_length\": 12",
      "\"seq_length\": 12, \"position_embedding_type\": \"rope\", \"rotary_percent\": 0.2",
      "c.json:8:58: model.rotary_percent: 0.2 of a head dimension of 8 is 1 channel, and an even "
      "number rotates; 0.25 would\n"},
     {"--set", "kv_channels=8"}},
    {{"\"seq_length\": 12",
      "\"seq_length\": 12, \"position_embedding_type\": \"rope\", \"kv_channels\": 6",
      "--set rotary_percent=0.5: model.rotary_percent: 0.5 of a head dimension of 6 is 3 channels, "
      "and an even number rotates; 0.333334 or 0.666667 would\n"},
     {"--set", "rotary_percent=0.5"}},
    {{"\"seq_length\": 12", "\"seq_length\": 12, \"qk_layernorm\": true",
      "--set qk_layernorm_across_heads=true: model.qk_layernorm_across_heads: is RMSNorm's: set "
      "model.normalization to RMSNorm, or this to false\n"},
     {"--set", "qk_layernorm_across_heads=true"}},
    {{"\"seq_length\": 12", "\"seq_length\": 12, \"position_embedding_type\": \"rope\"",
      "c.json, with --set rotary_scaling_type=yarn: model.original_max_position_embeddings: is "
      "needed: the tokens of the sequences before scaling\n"},
     {"--set", "rotary_scaling_type=yarn"}},
    {{"\"seq_length\": 12", "\"seq_length\": 12, \"moe_router_num_groups\": 4",
      "--set moe_router_group_topk=5: model.moe_router_group_topk: 5 of 4 groups do not hold 2 "
      "experts for a token\n"},
     {"--set", "moe_router_group_topk=5"}},
    {{"\"tensor_model_parallel_size\": 1", "\"tensor_model_parallel_size\": 4",
      "c.json:13:5, with --set num_query_groups=6: parallel.tensor_model_parallel_size: "
      "num_query_groups 6 neither divides by 4 nor divides it; tp 1, 2, 3, 6 or 12 would\n"},
     {"--set", "num_attention_heads=12", "--set", "num_query_groups=6", "--set", "hidden_size=12"}},
    {{"\"tensor_model_parallel_size\": 1", "\"sequence_parallel\": false",
      "--mesh tp=2: parallel.data_parallel_size: given by --set and by --mesh tp=2\n"},
     {"--mesh", "tp=2", "--set", "parallel.data_parallel_size=2"}},
    {{"\"seq_length\": 12", "\"seq_length\": 12",
      "--set rampup_batch_size=[2,\"2\",8]: expected an integer or an array of integers of 1 to "
      "1e+11, got a string \"2\"\n"},
     {"--set", "rampup_batch_size=[2,\"2\",8]"}},
    {{"\"num_experts\": 4", "\"num_experts\": 0",
      "--mesh dp=2,ep=2: parallel.expert_model_parallel_size 2: the model has no experts"},
     {"--mesh", "dp=2,ep=2"}},
    {{"\"expert_binding\": \"dp\"", "\"expert_binding\": \"dp\", \"moe_num_partitions\": 0",
      "c.json:14:29: parallel.moe_num_partitions: to be chosen, which takes parallel.cluster"},
     {"--mesh", "dp=2,ep=2", "--set", "num_experts=4"}},
    {{"\"expert_binding\": \"dp\"",
      "\"cp_comm_type\": \"a2a+p2p\", \"hierarchical_context_parallel_sizes\": [2, 2]",
      "c.json:14:32: parallel.hierarchical_context_parallel_sizes has 2 sizes of product 4; two, "
      "whose product is context_parallel_size, 6, would fit, or another cp_comm_type\n"},
     {"--mesh", "cp=6", "--set", "num_query_groups=4"}},
    {{"\"expert_binding\": \"dp\"",
      "\"cp_comm_type\": \"a2a+p2p\", \"hierarchical_context_parallel_sizes\": [1, 2]",
      "c.json:14:32: parallel.hierarchical_context_parallel_sizes [1, 2]: both are above 1; "
      "cp_comm_type p2p is what this is\n"},
     {"--mesh", "cp=2"}},
    {{"\"expert_binding\": \"dp\"", "\"cp_comm_type\": \"auto\", \"cluster\": \"none.json\"",
      "c.json:14:29: parallel.cluster: none.json: No such file or directory\n"},
     {"--mesh", "cp=2"}},
    {{"\"expert_binding\": \"dp\"", "\"cp_comm_type\": \"auto\", \"cluster\": \"bare_device.json\"",
      "c.json:14:29: parallel.cluster: "},
     {"--mesh", "cp=2"}},
    {{"\"expert_binding\": \"dp\"", "\"expert_binding\": \"dp\", \"moe_partition_by\": \"peers\"",
      "--set moe_peer_group_size=3: parallel.moe_peer_group_size: groups of 3 do not divide 4 "
      "ranks "
      "of expert parallelism; 1, 2 or 4 would\n"},
     {"--mesh", "dp=4,ep=4", "--set", "moe_peer_group_size=3"}},
    {{"\"expert_binding\": \"dp\"", "\"expert_binding\": \"dp\", \"moe_partition_by\": \"peers\"",
      "--set moe_num_partitions=3: parallel.moe_num_partitions: 3, but moe_partition_by peers has "
      "one for"},
     {"--mesh", "dp=2,ep=2", "--set", "moe_num_partitions=3"}},
    {{"\"expert_binding\": \"dp\"", "\"expert_binding\": \"dp\", \"moe_partition_by\": \"peers\"",
      "--set moe_memory_reuse=s1: parallel.moe_memory_reuse: moe_partition_by peers reuses no"},
     {"--set", "moe_memory_reuse=s1"}},
    {{"\"expert_binding\": \"dp\"", "\"expert_binding\": \"dp\", \"moe_all_to_all\": \"o1\"",
      "--set moe_all_to_all_chunks=2: parallel.moe_all_to_all_chunks: 2, but o1 sends all at once"},
     {"--mesh", "tp=2,dp=2,ep=2,etp=2", "--set", "moe_all_to_all_chunks=2"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"corpse\"",
      "c.json:21:5: data.data_path: corpse.idx: No such file or directory"},
     {"--mesh", "dp=2"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"corpus\", \"split\": \"1,0,0\"",
      "c.json:21:28, with --set eval_interval=1: data.split: evaluation needs a validation share"},
     {"--set", "eval_interval=1"}},
    {{"\"hidden_size\": 16", "\"hidden_size\": 16, \"vocab_size\": 100",
      "c.json:4:24: model.vocab_size: 100 is less than the dataset's vocabulary of 257"},
     {"--mesh", "dp=2"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"bare\"",
      "c.json: model.vocab_size: missing, and bare.json, which would say, is not there"},
     {"--mesh", "dp=2"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"bare\"",
      "--set vocab_size=50: model.vocab_size: 50, but bare.bin holds token "},
     {"--mesh", "dp=2", "--set", "vocab_size=50"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"corpus\", \"reset_attention_mask\": true",
      "c.json:21:28: data.reset_attention_mask: needs the token that ends a document: corpus.json "
      "says that its documents end with none; data.eod_token would say"},
     {"--mesh", "dp=2"}},
    {{"\"data_path\": \"corpus\"", "\"data_path\": \"bare\"",
      "--set eod_mask_loss=true: data.eod_mask_loss: needs the token that ends a document: "
      "bare.json is not there; data.eod_token would say"},
     {"--mesh", "dp=2", "--set", "vocab_size=300", "--set", "eod_mask_loss=true"}},
    {{"\"data_path\": \"corpus\"", "\"mock_data\": true, \"reset_position_ids\": true",
      "c.json:21:24: data.reset_position_ids: needs data.eod_token, the token that ends a "
      "document"},
     {"--set", "vocab_size=300"}},
    {{"\"seq_length\": 12", "\"seq_length\": 100000", "c.json:21:5: data.data_path: corpus: "},
     {"--mesh", "dp=2"}},
};

/* Words of a command line; where the config is good, those behind `weft train c.json --out run`.
 */
typedef struct misuse {
    const char *args[MAX_WORDS];
    const char *wanted;
} misuse;

static const misuse words[] = {
    {{"--set", "parallel.use_distributed_optimizer=false", "--set",
      "parallel.data_parallel_sharding_strategy=optim_grads"},
     "--set parallel.data_parallel_sharding_strategy=optim_grads: "
     "parallel.data_parallel_sharding_strategy: shards the optimizer's state, "
     "use_distributed_optimizer is false; leave one out"},
    {{"--mesh", "dp=2,zero=3", "--set", "parallel.use_distributed_optimizer=false"},
     "--set parallel.use_distributed_optimizer=false: parallel.use_distributed_optimizer: given by "
     "--set and by --mesh dp=2,zero=3"},
    {{"--set", "checkpoint.load="},
     "--set checkpoint.load=: checkpoint.load: \"\" names no checkpoint\n"},
    {{"--set", "num_layers=\"2\""},
     "--set num_layers=\"2\": expected an integer of 1 to 65533, got a string \"2\"\n"},
    {{"--set", "no_save=1"}, "--set no_save=1: expected true or false, got 1\n"},
    {{"--mesh", "zero=4"}, "--mesh zero=4: 0 to 3 (no_shard, optim, optim_grads, "},
    /* --- the text of the file */
    {{"--set", "lr_warmup_iters=3"},
     "--set lr_warmup_iters=3: train.lr_warmup_iters: a warm-up of 3 steps in a run of 2 "},
    {{"--set", "lr_decay_style=WSD", "--set", "lr_wsd_decay_iters=3"},
     "--set lr_wsd_decay_iters=3: train.lr_wsd_decay_iters: a decay of 3 steps in a run of 2 "},
    {{"--set", "offload.experts=host", "--set", "offload.kept=-0.5"},
     "--set offload.kept=-0.5: offload.kept: -0.5 is out of range: a share of 0 to 1, or -1\n"},
    {{"--set", "offload.kept=-0.5"},
     "--set offload.kept=-0.5: offload.kept: -0.5 is out of range: a share of 0 to 1, or -1\n"},
    {{"--set", "offload.chosen_cached=-0.5"},
     "--set offload.chosen_cached=-0.5: offload.chosen_cached: -0.5 is out of range: a share of 0 "
     "to 1, or -1\n"},
    {{"--set", "offload.experts=file", "--set", "offload.path="},
     "--set offload.path=: offload.path: empty; a folder would do\n"},
    {{"--set", "offload.path="}, "--set offload.path=: offload.path: empty; a folder would do\n"},
    {{"--set", "offload.experts=host", "--set", "moe_num_partitions=4"},
     "--set moe_num_partitions=4: parallel.moe_num_partitions: 4 with offload.experts host: an "
     "expert's weights go up once for all its rows; 1 would, or moe_partition_by experts\n"},
    {{"--mesh", "dp=2,ep=2,binding=dp", "--set", "moe_num_partitions=9", "--set",
      "moe_partition_by=experts"},
     "--set moe_num_partitions=9: parallel.moe_num_partitions: 9, but moe_partition_by experts "
     "cuts a rank's experts of a layer, which are "},
    {{"--set", "offload.experts=host", "--set", "moe_num_partitions=0", "--set",
      "moe_choice=phases"},
     "--set moe_choice=phases: parallel.moe_choice: phases knows nothing of uploads, and "
     "moe_num_partitions is 0 with offload.experts host; price would, or profile\n"},
    {{"--set", "offload.experts=host", "--set", "moe_num_partitions=0", "--set",
      "offload.placement=balanced"},
     "--set moe_num_partitions=0: parallel.moe_num_partitions: 0 with offload.placement balanced, "
     "which deals out all of a layer's experts at once; 1 would, or home\n"},
    {{"--set", "offload.experts=auto", "--set", "moe_num_partitions=4"},
     "--set moe_num_partitions=4: parallel.moe_num_partitions: 4 with offload.experts auto: "},
    {{"--set", "offload.experts=host", "--set", "moe_partition_by=peers"},
     "--set moe_partition_by=peers: parallel.moe_partition_by: peers with offload.experts host: "},
    {{"--set", "offload.experts=file", "--set", "offload.placement=balanced"},
     "--set offload.placement=balanced: offload.placement: balanced deals out experts in host "
     "memory, and offload.experts is file; home would\n"},
    {{"--set", "offload.experts=host", "--set", "offload.placement=balanced", "--set",
      "offload.order=layer"},
     "--set offload.placement=balanced: offload.placement: balanced with offload.order layer, "},
    {{"--set", "offload.experts=host", "--set", "moe_memory_reuse=s1"},
     "--set moe_memory_reuse=s1: parallel.moe_memory_reuse: reuses buffers of partitions, and "},
    /* --- the model */
    {{"--set", "shuffle_block_tokens=30"},
     "--set shuffle_block_tokens=30: data.shuffle_block_tokens: 30 is no multiple of seq_length "
     "12; 24 or 36 would"},
    /* --- the mesh, on the command line */
    {{"--mesh", "dp=2,ep=2", "--set", "num_experts=4", "--set", "moe_memory_reuse=auto"},
     "--set moe_memory_reuse=auto: parallel.moe_memory_reuse: to be chosen, which takes"},
    {{"--mesh", "dp=2,ep=2", "--set", "num_experts=4", "--set", "cluster=none.json"},
     "--set cluster=none.json: parallel.cluster: none.json: No such file or directory"},
    {{"--set", "num_experts=4", "--set", "cluster=none.json"},
     "--set cluster=none.json: parallel.cluster: none.json: No such file or directory"},
    {{"--set", "delay_wgrad_compute=true"},
     "--set delay_wgrad_compute=true: unknown key; did you mean "
     "parallel.pipeline_schedule?"},
    {{"--mesh", "tp=3"}, "--mesh tp=3: parallel.tensor_model_parallel_size: num_att"},
    {{"--mesh", "pp=3"}, "--mesh pp=3: parallel.pipeline_model_parallel_size: 3 stag"},
    {{"--mesh", "tp=2,sp=1", "--set", "seq_length=11"},
     "--mesh tp=2,sp=1: parallel.sequence_parallel: seq_length 11 does not divide by 2; seq_length "
     "10 or 12 would\n"},
    {{"--mesh", "cp=2", "--set", "seq_length=10"},
     "--mesh cp=2: parallel.context_parallel_size: seq_length 10 does not divide by 4 = 2 x 2; "
     "seq_length 8 or 12 would; cp 1 or 5 would\n"},
    {{"--mesh", "cp=3", "--set", "seq_length=16"},
     "--mesh cp=3: parallel.context_parallel_size: seq_length 16 does not divide by 6 = 2 x 3; "
     "seq_length 12 or 18 would; cp 1, 2, 4 or 8 would\n"},
    {{"--mesh", "tp=2,cp=2,sp=1", "--set", "seq_length=12"},
     "--mesh tp=2,cp=2,sp=1: parallel.context_parallel_size: seq_length 12 does not divide by 8 = "
     "2 x 2 x tensor_model_parallel_size 2; seq_length 8 or 16 would; cp 1 or 3 would\n"},
    /* --- attention over context-parallel ranks */
    {{"--mesh", "tp=2,cp=2", "--set", "cp_comm_type=a2a"},
     "--set cp_comm_type=a2a: parallel.cp_comm_type: a2a deals num_query_groups 2 to 2 ranks x "
     "tensor_model_parallel_size 2, which does not come out even; p2p or all_gather would do\n"},
    {{"--mesh", "cp=2", "--set", "cp_comm_type=a2a+p2p"},
     "--mesh cp=2: parallel.hierarchical_context_parallel_sizes is not given; cp_comm_type a2a+p2p "
     "needs two sizes, whose product is context_parallel_size\n"},
    {{"--mesh", "cp=4", "--set", "cp_comm_type=a2a+p2p", "--set",
      "hierarchical_context_parallel_sizes=2"},
     "--set hierarchical_context_parallel_sizes=2: parallel.hierarchical_context_parallel_sizes is "
     "one size, 2; cp_comm_type a2a+p2p needs two, whose product is context_parallel_size, 4, like "
     "[2, 2]\n"},
    {{"--mesh", "cp=2", "--set", "cp_comm_type=auto"},
     "--set cp_comm_type=auto: parallel.cp_comm_type: auto is chosen by price, which takes "
     "parallel.cluster (a file that weft calibrate writes)\n"},
    {{"--mesh", "tp=2", "--set", "num_experts=0", "--set", "ffn_hidden_size=31"},
     "--mesh tp=2: parallel.tensor_model_parallel_size: ffn_hidden_size 31 does not divide by 2; "
     "tp 1 would\n"},
    {{"--mesh", "tp=2,dp=1,ep=1,etp=2", "--set", "moe_ffn_hidden_size=33"},
     "--mesh tp=2,dp=1,ep=1,etp=2: parallel.expert_tensor_parallel_size: moe_ffn_hidden_size 33 "
     "does not divide by 2; etp 1 would\n"},
    {{"--mesh", "tp=2", "--set", "seq_length=11"},
     "--mesh tp=2: parallel.tensor_model_parallel_size: seq_length x micro_batch_size 11 does not "
     "divide by 2; tp 1 would\n"},
    {{"--mesh", "dp=3"},
     "c.json:17:5: train.global_batch_size: 4 does not divide by micro_batch_size 1 x dp 3; 3 or 6 "
     "would\n"},
    {{"--mesh", "tp=3,pp=3"},
     "--mesh tp=3,pp=3: parallel.pipeline_model_parallel_size: 3 stages for 2 layers; with pp 2, "
     "tp 1, 2 or 4 would\n"},
    {{"--mesh", "dp=2,ep=3"},
     "--mesh dp=2,ep=3: parallel.expert_model_parallel_size 3 x expert tensor 1 = 3 does not "
     "divide the 2 ranks of a pipeline stage; ep 1 or 2 would\n"},
    /* --- stages and schedules */
    {{"--mesh", "pp=2,layout=Ett|tL"},
     "--mesh pp=2,layout=Ett|tL: parallel.pipeline_model_parallel_layout: \"Ett|tL\" has 3 layers "
     "(t), the model has 2\n"},
    {{"--mesh", "pp=2,layout=Et|t|L"},
     "--mesh pp=2,layout=Et|t|L: parallel.pipeline_model_parallel_layout: \"Et|t|L\" has 3 stages, "
     "which do not divide over 2 ranks; 2 or 4 would\n"},
    {{"--mesh", "pp=2,vp=2"},
     "--mesh pp=2,vp=2: parallel.num_virtual_stages_per_pipeline_rank: 4 stages for 2 layers"},
    {{"--mesh", "pp=2", "--set", "num_layers_per_virtual_pipeline_stage=2"},
     "--set num_layers_per_virtual_pipeline_stage=2: "
     "parallel.num_layers_per_virtual_pipeline_stage: 2 layers are no multiple of 2 on each of 2 "
     "ranks"},
    {{"--mesh", "pp=2,layout=E|t|t|L", "--set",
      "microbatch_group_size_per_virtual_pipeline_stage=1"},
     "--set microbatch_group_size_per_virtual_pipeline_stage=1: "
     "parallel.microbatch_group_size_per_virtual_pipeline_stage: 1 micro-batches; a group has at "
     "least as many as there are ranks in the pipeline, 2\n"},
    {{"--mesh", "pp=2", "--set", "global_batch_size=1", "--set",
      "pipeline_schedule_file=premature.csv"},
     "--set pipeline_schedule_file=premature.csv: parallel.pipeline_schedule_file: premature.csv: "
     "line 2, column 2, \"1B0\": premature: 1F0 has not come\n"},
    {{"--mesh", "pp=2", "--set", "global_batch_size=1", "--set", "pipeline_schedule_file=none.csv"},
     "--set pipeline_schedule_file=none.csv: parallel.pipeline_schedule_file: none.csv: No such "
     "file or directory\n"},
    /* --- how MoE layers run on it */
    {{"--set", "moe_peer_group_size=2"},
     "--set moe_peer_group_size=2: parallel.moe_peer_group_size: 2, but partitions are cut by"},
    {{"--mesh", "dp=2", "--set", "device.comm=nccl"},
     "--set device.comm=nccl: device.comm: nccl moves data between GPUs, and device.kind is cpu"},
    {{"--mesh", "pt=2"}, "--mesh pt: unknown name; did you mean tp?"},
    {{"--mesh", "dp=2", "--set", "trace_ranks=[0, 2]"},
     "--set trace_ranks=[0, 2]: log.trace_ranks: no rank 2 among 2 ranks"},
    {{"--mesh", "dp=2", "--set", "trace_ranks=[1, 0, 1]"},
     "--set trace_ranks=[1, 0, 1]: log.trace_ranks: rank 1 stands there twice"},
    {{"--mesh", "tp=1048576,pp=1048576,dp=1048576"}, "a mesh of 2147483647 ranks"},
    /* --- batches, optimizer, data */
    {{"--set", "split=0,0,1"},
     "--set split=0,0,1: data.split: \"0,0,1\" leaves no share to train on; the first of training"},
    {{"--set", "device.pace_link=5"},
     "--set device.pace_link=5: device.pace_link: 5 is out of range: 0, or 1e+06 to 1e+14 bytes/s"},
    {{"--set", "device.pace_file=5"},
     "--set device.pace_file=5: device.pace_file: 5 is out of range: 0, or 1e+06 to 1e+14 bytes/s"},
    {{"--set", "reset_position_ids=true", "--set", "eod_token=257"},
     "--set eod_token=257: data.eod_token: 257 is outside a vocabulary of 257"},
    /* --- the command line */
    {{"--set", "num_layer=2"}, "--set num_layer=2: unknown key; did you mean model.num_layers?"},
    {{"--set", "num_attention_heads=5"},
     "--set num_attention_heads=5: model.num_attention_heads: hidden_size 16 does not divide"},
    {{"--out", "other"}, "--out: given twice"},
#ifndef WEFT_HAS_CUDA
    {{"--set", "device.kind=cuda", "--mesh", "dp=2"},
     "--set device.kind=cuda: device.kind: no CUDA device: this Weft was built without CUDA"},
#endif
    {{"--mesh"}, "--mesh: its value AXES is missing; see weft train --help"},
    {{"--mesh", "--resume"}, "--mesh: its value AXES is missing; see weft train"},
    {{"second.json"}, "second.json: unexpected; see weft train --help"},
    {{"--resume-from", "step-2"}, "--resume-from step-2: run has no such checkpoint\n"},
    {{"--resume-from", "step-2", "--mesh", "dp=2"},
     "--resume-from step-2: run has no such checkpoint\n"},
};

/* Other verbs and what train needs besides; the whole command line. */
static const misuse misuses[] = {
    {{"plan", "c.json", "--cluster", "key.json"},
     "weft plan: key.json:1:52: devcie: unknown key; did you mean device?\n"},
    {{"plan", "c.json", "--cluster", "peak.json"},
     "weft plan: peak.json:1:93: device.peak.bf16: 312 FLOP/s: meant 312e12?\n"},
    {{"plan", "c.json", "--cluster", "share.json"},
     "weft plan: share.json:1:126: device.efficiency.gemm[0]: an efficiency of 1.2, where 1e-6 to "
     "1 "
     "are possible: per cent?\n"},
    {{"plan", "c.json", "--cluster", "bare_device.json"},
     "weft plan: bare_device.json: stage 0: embedding: cluster \"c\": device.memory_bandwidth is "
     "not known, and "
     "embedding needs it\n"},
    {{"plan", "c.json", "--cluster", "bare_device.json", "--kernels", "plain", "--set",
      "offload.experts=host"},
     "weft plan: --set offload.experts=host: offload.experts: plain kernels keep experts on the "
     "device; none would do\n"},
    {{"trian", "c.json"}, "weft: unknown verb \"trian\"; did you mean train?\n"},
    {{"train", "c.json"}, "weft train: --out RUN is missing; see weft train --help\n"},
    {{"train", "--out", "run"}, "weft train: CONFIG is missing; see weft train --help\n"},
    {{"train", "none.json", "--out", "run"}, "weft train: none.json: "},
    {{"train", ".", "--out", "run"}, "weft train: .: not a regular file\n"},
    {{"train", "pipe", "--out", "run"}, "weft train: pipe: not a regular file\n"},
    {{"generate", "run"}, "weft generate: --prompt TEXT is missing; see weft"},
    {{"generate", "run", "--prompt", "a", "--num-tokens", "-3"},
     "weft generate: --num-tokens -3: -3 is out of range: 1 to 1000000000\n"},
    {{"plan", "config.json", "--cluster", "c.json", "--search", "--nodes", "2,,3"},
     "weft plan: --nodes \"\": expected an integer of 1 to 100000, got "
     "\"\"\n"},
    {{"generate", "run", "--prompt", "a", "--temperature", "-0.1"},
     "weft generate: --temperature -0.1: -0.1 is out of range: at least 0\n"},
    {{"generate", "run", "--prompt", "a", "--seed", "9999999999999999999"},
     "weft generate: --seed 9999999999999999999: 9999999999999999999 is out of range: 0 to "
     "1e+15\n"},
    {{"inspect"}, "weft inspect: CHECKPOINT|DATASET is missing; see weft inspect --help"},
    {{"inspect", "a", "b"}, "weft inspect: b: unexpected; see weft inspect --help"},
    {{"inspect", "--json=yes", "a"}, "weft inspect: --json=yes: takes no value"},
    {{"inspect", "run", "--full"}, "weft inspect: --full: needs --sample\n"},
    {{"inspect", "run", "--flight", "--sample", "2"},
     "weft inspect: --flight and --sample: one of them\n"},
    {{"inspect", "--deep", "a"}, "weft inspect: --deep: unknown option"},
};

#define CLUSTER "{\"name\": \"c\", \"num_nodes\": 1, \"ranks_per_node\": 8, "
static const struct {
    const char *name, *text;
} files[] = {
    {"premature.csv", "0F0,0B0\n,1B0,1F0\n"},
    {"key.json", CLUSTER "\"devcie\": {}}"},
    {"peak.json", CLUSTER "\"device\": {\"name\": \"d\", \"peak\": {\"bf16\": 312}}}"},
    {"share.json", CLUSTER "\"device\": {\"name\": \"d\", \"peak\": {\"bf16\": 312e12}, "
                           "\"efficiency\": {\"gemm\": [[1e9, 1.2]]}}}"},
    {"bare_device.json", CLUSTER "\"device\": {\"name\": \"d\"}}"},
};

static const char *const no_mpirun[] = {"PATH=/nonexistent", NULL};
static bool make_files(void)
{
    bool good = true;
    child_make_corpus("bare", 2000);
    child_make_corpus("corpus", 2000);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        good = good && child_write(files[i].name, files[i].text);
    return good && mkfifo("pipe", 0600) == 0 && unlink("bare.json") == 0;
}

/* The base with a part replaced. */
static bool write_config(const mistake *m)
{
    static char text[4096];
    const char *at = strstr(good_config, m->from);
    if (!at)
        return false;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_config), good_config, m->to,
             at + strlen(m->from));
    return child_write("c.json", text);
}

static void check(const char *const *args, const char *const *environment, const char *name,
                  int exit_code, const char *wanted)
{
    child c;
    child_run(&c, args, environment);
    child_drop_folder(c.err);
    const char *err = c.err ? c.err : "nothing";
    EXPECT(c.exit_code == exit_code, "%s: exit %d: %s", name, c.exit_code, err);
    EXPECT(child_is_line(c.err) && strncmp(err, wanted, strlen(wanted)) == 0,
           "%s: got\n  %sfor\n  %s", name, err, wanted);
    EXPECT(c.out && !*c.out, "%s: wrote to stdout: %s", name, c.out);
    EXPECT(access("run", F_OK) != 0, "%s: made the run folder", name);
}

/* With words behind; nothing stands behind the last of MAX_WORDS. */
static void check_train(const char *const more[MAX_WORDS], const char *name, const char *wanted)
{
    const char *args[4 + MAX_WORDS] = {"train", "c.json", "--out", "run"};
    char line[400];
    memcpy(args + 4, more, (MAX_WORDS - 1) * sizeof *more);
    snprintf(line, sizeof line, "weft train: %s", wanted);
    check(args, no_mpirun, name, 2, line);
}

static void check_mistake(const mistake *m, const char *const more[MAX_WORDS])
{
    EXPECT(write_config(m), "c.json: no %s", m->from);
    check_train(more, m->to, m->wanted);
}

/* As under `mpirun -n 3`: rank 0 speaks, the others leave later with the same code and no word; but
 * the first of another node, which may have found what rank 0 has not. */
static void check_launched(void)
{
    static const char *const args[] = {"train", "c.json", "--out", "run", "--mesh", "tp=2", NULL};
    const char *environment[] = {
        "PATH=/nonexistent",      "OMPI_COMM_WORLD_SIZE=3",       "OMPI_COMM_WORLD_LOCAL_SIZE=3",
        "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0", NULL};
    child c;
    check(
        args, environment, "3 ranks", 2,
        "weft train: --mesh tp=2: parallel.tensor_model_parallel_size 2 x pipeline 1 = 2 does not "
        "divide 3 ranks; tp 1 would\n");
    environment[3] = "OMPI_COMM_WORLD_RANK=1";
    child_run(&c, args, environment);
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && !*c.out &&
               strncmp(c.err, "weft train: rank 1: --mesh tp=2: ", 33) == 0,
           "rank 1: exit %d: %s", c.exit_code, c.err);
    environment[4] = "OMPI_COMM_WORLD_LOCAL_RANK=1";
    child_run(&c, args, environment);
    EXPECT(c.exit_code == 2 && c.err && !*c.err && !*c.out, "rank 1: exit %d: %s", c.exit_code,
           c.err);
}

/* Before any rank starts. */
static void check_memory(const char *mesh, const char *wanted)
{
    const char *const *args =
        WORDS("train", "c.json", "--out", "run", "--mesh", mesh, "--set", "memory_limit=20000");
    check(args, NULL, "memory_limit", 3, wanted);
}

/* Pinned memory that cannot be had, before step one: this machine has 4 GiB, and 8 GB go out. */
static void check_pinned(void)
{
#ifndef WEFT_SANITIZED
    const char *const *args =
        WORDS("train", "c.json", "--out", "run", "--set", "micro_batch_size=100000", "--set",
              "global_batch_size=100000", "--set", "seq_length=64", "--set",
              "train.fine_grained_activation_offloading=true", "--set",
              "train.offload_modules=[\"block\"]", "--set", "num_experts=0");
    struct rlimit before, small;
    child c;
    EXPECT(getrlimit(RLIMIT_AS, &before) == 0, "getrlimit");
    small = before;
    small.rlim_cur = (rlim_t)4 << 30;
    EXPECT(setrlimit(RLIMIT_AS, &small) == 0, "setrlimit");
    child_run(&c, args, NULL);
    EXPECT(setrlimit(RLIMIT_AS, &before) == 0, "setrlimit");
    const char *err = c.err ? c.err : "nothing";
    EXPECT(c.exit_code == 3 && child_is_line(c.err) &&
               strstr(err, "out of memory: host memory of layers asked "),
           "pinned memory: exit %d: %s", c.exit_code, err);
#endif
}

/* No mistake, but no silence either: keys of experts on a model that has none. Its one rank and its
 * last step, of a decay to 0, are told and done. */
static void check_no_effect(void)
{
    child c;
    child_run(&c,
              WORDS("train", "c.json", "--out", "run", "--set", "num_experts=0", "--set",
                    "moe_num_partitions=4", "--set", "moe_z_loss_coeff=0.1", "--set",
                    "eval_interval=0", "--set", "pace_work=all", "--set", "eod_token=1", "--set",
                    "calculate_per_token_loss=true", "--set", "label_mask=false", "--set",
                    "recompute_granularity=selective", "--set",
                    "recompute_modules=[\"moe\", \"mlp\"]", "--set", "hysteresis=3", "--set",
                    "cuda_graphs=false", "--set", "offload.experts=auto", "--set",
                    "offload.kept=-1"),
              no_mpirun);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    EXPECT(c.err && strstr(c.err, " warn model.num_experts is 0: no effect of "
                                  "model.moe_z_loss_coeff, parallel.moe_num_partitions\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn model.num_experts is 0: no effect of offload.experts, "
                                  "offload.kept\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn device.pace is 0: no effect of device.pace_work\n"), "%s",
           c.err);
    EXPECT(c.err && strstr(c.err, " warn data.reset_position_ids, reset_attention_mask, "
                                  "eod_mask_loss are false: no effect of data.eod_token\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn data.eod_mask_loss, label_mask are false: no effect "
                                  "of train.calculate_per_token_loss\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn model.num_experts is 0: no effect of moe in "
                                  "train.recompute_modules\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, "train.precision is not fp16: no effect of train.hysteresis\n") &&
               strstr(c.err, "device.kind is cpu: no effect of device.cuda_graphs\n"),
           "%s", c.err);
    EXPECT(c.out && strstr(c.out, "M parameters, 1 rank: "), "%s", c.out);
    char *metrics = child_read("run/metrics.jsonl"), *last = metrics ? strrchr(metrics, '{') : NULL;
    EXPECT(last && strstr(last, "\"step\": 2") && !strstr(last, "\"lr\": 0,"), "%s", metrics);
    child_run(&c,
              WORDS("train", "c.json", "--out", "offloads", "--set", "num_experts=0", "--set",
                    "moe_num_partitions=1", "--set", "eval_interval=0", "--set",
                    "fine_grained_activation_offloading=true", "--set",
                    "offload_modules=[\"core_attn\", \"moe\"]", "--set", "split_master=false",
                    "--set", "recompute_granularity=selective", "--set",
                    "recompute_modules=[\"layernorm\"]"),
              no_mpirun);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    EXPECT(c.err && strstr(c.err, " warn model.num_experts is 0: no effect of moe in "
                                  "train.offload_modules\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn train.precision is not bf16: no effect of "
                                  "train.split_master\n"),
           "%s", c.err);
    EXPECT(c.err && strstr(c.err, " warn train.recompute_modules names nothing that is kept"), "%s",
           c.err);
}

/* Experts' keys where a rank has too few of them, or nothing travels. */
static void check_no_effect_of_experts(void)
{
    static const struct {
        const char *line, *args[MAX_WORDS];
    } cases[] = {
        {"parallel.expert_model_parallel_size is at most 1: no effect of "
         "parallel.moe_num_partitions, parallel.moe_memory_reuse\n",
         {"--set", "moe_num_partitions=2", "--set", "moe_memory_reuse=s1"}},
        {"parallel.pipeline_model_parallel_size is 1: no effect of parallel.pipeline_schedule\n",
         {"--set", "pipeline_schedule=zbv"}},
        {NULL, {"--set", "pipeline_schedule=gpipe"}},
        {NULL, {"--mesh", "pp=2", "--set", "pipeline_schedule=zb_h1"}},
        {"parallel.expert_binding is tp: no effect of parallel.moe_num_partitions\n",
         {"--mesh", "tp=2,binding=tp", "--set", "moe_num_partitions=2"}},
        {"a rank brings up 4 experts of a layer: no effect of offload.slots above that\n",
         {"--set", "offload.experts=host", "--set", "offload.slots=5"}},
        {"a rank brings up 1 expert of a layer: no effect of offload.slots above that\n",
         {"--mesh", "dp=2,ep=2,binding=dp", "--set", "offload.experts=host", "--set",
          "offload.slots=4", "--set", "offload.kept=0.5"}},
        {"parallel.expert_model_parallel_size is at most 1: no effect of offload.placement, "
         "offload.replicas\n",
         {"--set", "offload.experts=host", "--set", "offload.placement=balanced", "--set",
          "offload.replicas=2"}},
        {"2 ranks have experts: no effect of offload.replicas above that\n",
         {"--mesh", "dp=2,ep=2,binding=dp", "--set", "offload.experts=host", "--set",
          "offload.placement=balanced", "--set", "offload.replicas=3"}},
        {NULL, {"--mesh", "dp=2,ep=2,binding=dp", "--set", "moe_num_partitions=2"}},
        {NULL, {"--set", "offload.experts=host", "--set", "offload.slots=4"}},
        {NULL,
         {"--mesh", "dp=2,ep=2,binding=dp", "--set", "offload.experts=host", "--set",
          "offload.placement=balanced", "--set", "offload.replicas=2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[MAX_WORDS + 6] = {"train", "c.json", "--out", "idle", "--dry-run"};
        child c;
        memcpy(args + 5, cases[i].args, sizeof cases[i].args);
        child_run(&c, args, no_mpirun);
        EXPECT(c.exit_code == 0 && c.err, "%zu: exit %d: %s", i, c.exit_code, c.err);
        EXPECT(cases[i].line ? strstr(c.err, cases[i].line) != NULL : !strstr(c.err, "no effect"),
               "%zu: %s", i, c.err);
    }
}

int main(void)
{
    static const char *const none[MAX_WORDS] = {NULL};
    const int num_mistakes = sizeof mistakes / sizeof *mistakes;
    const int num_clashes = sizeof clashes / sizeof *clashes;
    const int num_words = sizeof words / sizeof *words;
    const int num_misuses = sizeof misuses / sizeof *misuses;
    child_begin();
    EXPECT(make_files(), "weft prepare failed");
    for (int i = 0; i < num_mistakes; i++)
        check_mistake(&mistakes[i], none);
    for (int i = 0; i < num_clashes; i++)
        check_mistake(&clashes[i].in, clashes[i].args);
    EXPECT(child_write("c.json", good_config), "c.json");
    for (int i = 0; i < num_words; i++)
        check_train(words[i].args, words[i].args[1] ? words[i].args[1] : words[i].args[0],
                    words[i].wanted);
    for (int i = 0; i < num_misuses; i++)
        check(misuses[i].args, no_mpirun, misuses[i].args[0], 2, misuses[i].wanted);
    check_launched();
    check_pinned();
    check_memory("dp=1", "weft train: device.memory_limit: out of memory: stage 0 of 1 takes ");
    check_memory("dp=2", "weft train: device.memory_limit: out of memory: stage 0 of 1 takes ");
    check_no_effect();
    check_no_effect_of_experts();
    printf("%d mistakes\n", num_mistakes + num_clashes + num_words + num_misuses);
    return child_finish();
}
