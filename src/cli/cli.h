// The subcommands of `qdelta`: one file each, which adds it to the command line together with the callback that runs
// it.
#pragma once

namespace CLI {
class App;
}

namespace qdelta {

void add_op(CLI::App& app);
void add_bench(CLI::App& app);
void add_info(CLI::App& app);
void add_train(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_demo(CLI::App& app);
void add_logits(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_serve(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_eval(CLI::App& app);
void add_plot(CLI::App& app);
void add_analyze(CLI::App& app);
void add_compare(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace qdelta
