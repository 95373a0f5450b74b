// SPDX-License-Identifier: MIT
#include "command_options.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/stop_signal.h"
#include "base/untrusted_text.h"
#include "run/kinds.h"

namespace dalle2 {
namespace {

void add_train(CLI::App& app, TrainCommand& command) {
  add_value(app, "--config,--config_file FILE", command.config_path)
      ->description(
          "Config (JSON). Its root key says what is trained: decoder, prior, vae or clip");
  add_overrides(
      app, command.overrides, "Override a key of the file, e.g. --set /train/lr=3e-4 (repeatable)");
  app.add_flag("--strict", command.strict, "Treat warnings about the file as errors");
  app.add_flag("--dry-run", command.dry_run)
      ->description(
          "Validate the file, find the shards, build the model and print sizes, without training or writing");
  app.add_flag("--dump-config", command.dump_config)
      ->description("Print the effective config with every default, and stop");
  add_processes(app, command.processes, "train");
  app.add_flag("--quiet", command.quiet, "Show only warnings, errors and how the run ended");
  app.add_flag("--fresh", command.fresh)
      ->description("Begin a new run: the whole folder of a run that is in data_path is renamed");
  add_value(app, "--back-to FILE", command.back_to)
      ->description(
          "Resume from this snapshot of the run in data_path; what is newer moves to abandoned/");
}

template <class Command>
void add_lora(CLI::App& app, Command& command, const char* text) {
  add_value(app, "--lora-scale S", command.lora_scale)
      ->description(
          "Factor for the strength of the adapters: one, or one for each --lora (default: 1)")
      ->allow_extra_args(false);
  add_value(app, "--lora FILE", command.lora_paths)->description(text);
}

/// "--image " for an error in a file of --image: its text begins with the file's name.
std::string giver_of_file(const CLI::App& app, const std::string& error) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& file : option->results()) {
      if (error.starts_with(file + ": ") || error.starts_with(file + "/"))
        return option->get_name() + " ";
    }
  }
  return "";
}

Runner add_sample(CLI::App& app) {
  auto o = std::make_shared<SampleCommand>();
  add_value(app, "--checkpoint FILE", o->checkpoint_path)
      ->description(
          "Checkpoint or model file of this program or dalle2-pytorch: a file or a URL (https:, s3:, hf://OWNER/NAME/FILE)");
  add_value(app, "--config FILE", o->config_path)
      ->description("Config, for a checkpoint that holds none");
  add_value(app, "--upsampler FILE", o->upsampler_paths)
      ->description("Decoder's file whose unets go on from those of --checkpoint; repeat for more");
  add_value(app, "--upsampler-config FILE", o->upsampler_configs)
      ->description("Config of an --upsampler that holds none, one for each");
  add_value(app, "--upsampler-written-by V", o->upsampler_versions)
      ->description(
          "Version of dalle2-pytorch that wrote an --upsampler, or a decoder's file of --pipeline after the first, if the file does not say it, one for each");
  add_value(app, "--pipeline FILE", o->pipeline_path)
      ->description("File of dalle2-laion that names the files of all stages and of the prior");
  app.add_flag("--dry-run", o->dry_run, "Say what would draw, with sizes and memory, and end");
  add_value(app, "--written-by V", o->written_by)
      ->description(
          "Version of dalle2-pytorch that wrote --checkpoint, if the file does not say it");
  add_value(app, "--image-embeds NPY", o->image_embeds_path)
      ->description("Image embeddings, .npy [N, D]");
  add_value(app, "--text-embeds NPY", o->text_embeds_path)
      ->description("Text embeddings, .npy [N, D]");
  add_value(app, "--text-encodings NPY", o->text_encodings_path)
      ->description("Text encodings, .npy [N, L, D]");
  add_value(app, "--text TEXT", o->text)
      ->description(
          "Text to draw, or @FILE with one text per line. With --from-text: text that the picture changes towards")
      ->check(non_empty("a text"));
  add_value(app, "--to PATH|TEXT", o->to)
      ->description(
          "Interpolate from --image or --text to this picture or text, in --num pictures (default: 8)")
      ->check(non_empty("a picture or a text"));
  add_value(app, "--from-text TEXT", o->from_text)
      ->description(
          "Text that describes --image; the picture changes towards --text, in --num pictures (default: 8)")
      ->check(non_empty("a text"));
  add_value(app, "--theta X", o->theta)
      ->description("Fraction of the rotation towards the difference of the texts (default: 0.5)")
      ->check(CLI::Range(0.0, 1.0));
  add_value(app, "--prior FILE", o->prior_path)->description("Checkpoint of a prior");
  add_value(app, "--prior-config FILE", o->prior_config_path)
      ->description("Config of --prior, if the file holds none; only its section `prior` is read");
  add_value(app, "--prior-written-by V", o->prior_written_by)
      ->description("Version of dalle2-pytorch that wrote --prior, if the file does not say it");
  add_value(app, "--clip FILE", o->clip_path)->description("File of a CLIP (as for shards embed)");
  add_value(app, "--clip-config FILE", o->clip_config_path)
      ->description("Config of the CLIP, instead of the one in or beside its file");
  add_value(app, "--prior-cond-scale X", o->prior_cond_scale)
      ->description("Guidance of the prior (default: 1)");
  add_count(app, "--prior-timesteps", o->prior_timesteps)
      ->description("Sampling steps of the prior (default: its config's)");
  app.add_flag("!--prior-no-ema", o->prior_use_ema, "Use the live weights of the prior");
  add_value(app, "--prior-lora FILE", o->prior_lora_paths)
      ->description("Draw with this file of adapters of the prior (repeatable)");
  add_count(app, "--num", o->num, 1'000'000)
      ->description(
          "Number of pictures of an unconditional decoder, or for each --text or --image (default: 1)");
  add_value(app, "--cond-scale X", o->cond_scale)
      ->description(
          "Classifier-free guidance, one scale or one for each unet (default: 1, no guidance)");
  add_count(app, "--timesteps", o->timesteps)
      ->description("Sampling steps, one number or one for each unet (default: the config's)");
  app.add_option("--sampler", o->sampler)
      ->description("auto (the config's), ddpm, ddim or dpmpp (DPM-Solver++ 2M)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "ddpm", "ddim", "dpmpp"}));
  app.add_option("--cfg-rescale", o->cfg_rescale)
      ->description("Rescale of guided predictions, 0 (off) to 1 (Lin et al. 2023)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--precision", o->precision)
      ->description(
          "no (float32) or bf16: matrix products and convolutions in half precision, as in a run with train.mixed_precision")
      ->capture_default_str()
      ->check(CLI::IsMember({"no", "bf16"}));
  add_value(app, "--init-noise NPY", o->init_noise_paths)
      ->description("Starting noise, .npy [N, C, H, W]; repeat for each further stage, in order");
  app.add_option("--seed", o->seed, "Seed of all random numbers")->capture_default_str();
  app.add_flag("!--no-ema", o->use_ema, "Use the live weights, not the averaged ones");
  add_lora(app, *o, "Draw with this file of adapters (repeatable)");
  add_device(app, o->device);
  add_count(app, "--batch-size", o->batch_size)
      ->description("Pictures (for a prior: texts) processed at once");
  add_count(app, "--candidates,--num-prior-samples", o->candidates, 1000)
      ->description(
          "Number of embeddings that a prior draws for each text; the one nearest to the text is used (default: 2)");
  add_count(app, "--start-unet", o->start_unet)
      ->description("First stage to sample, counted from 1; above 1, --image is needed");
  add_count(app, "--stop-unet", o->stop_unet)->description("Last stage to sample");
  add_value(app, "--image PATH", o->image_path)
      ->description(
          "With --clip: draw variations of this picture. With --start-unet: low-resolution input of "
          "that unet. A folder of pictures or .npy [N, C, H, W] also works");
  add_value(app, "--inpaint-image PATH", o->inpaint_image_path)
      ->description("Picture to complete (RePaint)");
  add_value(app, "--inpaint-mask PATH", o->inpaint_mask_path)
      ->description("Mask of --inpaint-image: white is kept, black is drawn again");
  add_count(app, "--inpaint-resample-times", o->inpaint_resample_times)
      ->description("Number of times that RePaint runs each step (default: 5; 1 repeats none)");
  add_value(app, "--out DIR", o->out_folder)
      ->description(
          "Folder for 0000.png ..., sheet.png and samples.npy, or for a prior's image_embeds.npy")
      ->required();
  add_overwrite(app,
                o->overwrite,
                "Write into a DIR that holds files, and replace those with the name of an output");
  return [o, &app] {
    o->facts = given_options(app);
    try {
      run_sample(*o);
    } catch (const Error& error) {
      throw Error(error.code(), giver_of_file(app, error.what()) + error.what());
    }
    return ExitCode::kDone;
  };
}

Runner add_evaluate(CLI::App& app) {
  auto o = std::make_shared<EvaluateCommand>();
  add_value(app, "--config FILE", o->config_path)
      ->description("Config, which gives the data, the seed and the metrics")
      ->required();
  add_value(app, "--checkpoint FILE", o->checkpoint_path)
      ->description("checkpoint.pth or model.pth of the run")
      ->required();
  add_overrides(app, o->overrides);
  app.add_option("--split", o->split, "Samples to evaluate: train, val or test")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "val", "test"}));
  add_count(app, "--timesteps", o->timesteps)
      ->description(
          "Sampling steps: one number or one for each unet; for a prior, the numbers to compare (default: the config's)");
  app.add_flag("!--no-ema", o->use_ema, "Use the live weights, not the averaged ones");
  add_processes(app, o->processes, "evaluate");
  return runner_of(o, run_evaluate);
}

Runner add_inspect(CLI::App& app) {
  auto o = std::make_shared<FileCommand>();
  app.add_option("file", o->path)
      ->description(".pth or .safetensors: a file or a URL, as for sample --checkpoint")
      ->required();
  app.add_flag("--json", o->json, "One JSON object instead of a table");
  return runner_of(o, run_inspect);
}

Runner add_fsck(CLI::App& app) {
  auto o = std::make_shared<FileCommand>();
  app.add_option("path", o->path, "Checkpoint, model file, safetensors, or the folder of a run")
      ->required();
  app.add_flag("--json", o->json, "One JSON object instead of text");
  return runner_of(o, run_fsck);
}

Runner add_convert(CLI::App& app) {
  auto o = std::make_shared<ConvertCommand>();
  auto paths = std::make_shared<std::vector<std::string>>();
  app.add_option("files", *paths)
      ->description("File to read (with --merge: two or more files), then file to write")
      ->required()
      ->expected(2, 1 << 20)
      ->type_name("IN... OUT");
  app.add_flag("--merge", o->merge)
      ->description("Join checkpoints of one cascade whose unets were trained separately");
  add_value(app, "--config FILE", o->config_path)
      ->description(
          "Config to store in OUT; only the section of the model is read. With --merge: config of "
          "the cascade (default: that of the file with the lowest stage)");
  add_value(app, "--written-by V", o->written_by)
      ->description("Version of dalle2-pytorch that wrote IN, if the file does not say it");
  add_value(app, "--to V", o->to)
      ->description("Convert weights of an older dalle2-pytorch to those of this version: 1.15.6")
      ->check(CLI::IsMember({"1.15.6"}));
  app.add_flag("--ema", o->ema, "Write only the averaged weights");
  app.add_flag("--merge-lora", o->merge_lora)
      ->description("Merge the adapters that the checkpoint IN holds into plain weights");
  add_lora(app, *o, "Merge this file of adapters into the weights of IN (repeatable)");
  app.add_flag("--open-clip", o->open_clip)
      ->description(
          "IN is a CLIP, from a run or another program: write the layout and config of open_clip");
  add_overwrite(app, o->overwrite, "Replace OUT");
  return [o, paths] {
    o->in_paths.assign(paths->begin(), paths->end() - 1);
    o->out_path = paths->back();
    run_convert(*o);
    return ExitCode::kDone;
  };
}

Runner add_ema(CLI::App& app) {
  auto o = std::make_shared<EmaCommand>();
  add_value(app, "--sigma S", o->sigma)
      ->description(
          "Width of the average, relative to the length of the run: 0.05 is narrow, 0.2 is wide")
      ->required();
  app.add_option("--step", o->step, "Average as of this step (default: the last one saved)");
  auto paths = std::make_shared<std::vector<std::string>>();
  app.add_option("paths", *paths)
      ->description(
          "Folder DATA_PATH/averages, files in it, or checkpoints; then the .pth to write")
      ->required()
      ->expected(2, 1 << 20)
      ->type_name("FILES... OUT");
  add_overwrite(app, o->overwrite, "Replace OUT");
  return [o, paths] {
    o->checkpoints.assign(paths->begin(), paths->end() - 1);
    o->out_path = paths->back();
    run_ema(*o);
    return ExitCode::kDone;
  };
}

Runner add_schema(CLI::App& app) {
  auto kind = std::make_shared<std::string>();
  app.add_option("kind", *kind, "decoder, prior, vae or clip")
      ->required()
      ->type_name("KIND:{decoder,prior,vae,clip}");
  return runner_of(kind, run_schema);
}

Runner add_init(CLI::App& app) {
  auto o = std::make_shared<InitCommand>();
  app.add_option("data", o->data)
      ->description(
          "Folder of shards or pictures (decoder, VAE, CLIP), or of .npy embeddings (prior)")
      ->required()
      ->type_name("DATA")
      ->check(non_empty("a path"));
  std::vector<std::string> kinds;
  for (const RunKind& kind : run_kinds()) {
    if (kind.first_config) kinds.push_back(kind.key);
  }
  add_value(app, "--kind KIND", o->kind)
      ->description("Kind of the config (default: determined from DATA)")
      ->check(CLI::IsMember(kinds));
  add_value(app, "--out FILE", o->out_path)
      ->description("File to write (default: KIND.json)")
      ->check(non_empty("a path"));
  add_value(app, "--image-size N", o->image_size)
      ->description(
          "Side of the pictures in pixels, a multiple of 8 (default: 64 on a GPU, 32 on a CPU, or "
          "less if many pictures are smaller; for a VAE 64)")
      ->check(CLI::Range(8, 1024));
  add_value(app, "--minutes M", o->minutes)
      ->description(
          "Time that the run may take on this machine: trains a few updates to see how many fit "
          "(default: as many as the samples are worth, within limits)")
      ->check(CLI::Range(0.1, 1e6));
  add_value(app, "--nproc-per-node N", o->processes)
      ->description("Number of processes that the splits must have shards for")
      ->check(CLI::Range(1, 1024));
  add_caption_encoding(app, o->caption_encoding);
  add_overwrite(app, o->overwrite, "Replace FILE");
  return runner_of(o, run_init);
}

Runner add_report(CLI::App& app) {
  auto o = std::make_shared<ReportCommand>();
  app.add_option("data_path", o->data_path, "Folder of the run (tracker.data_path of its config)")
      ->required();
  add_value(app, "--out HTML", o->out_path)->description("Page to write")->required();
  add_value(app, "--compare DATA_PATH", o->compare)
      ->description("Folders of other runs, whose curves are drawn in the same charts")
      ->allow_extra_args();
  add_count(app, "--picture-steps", o->most_picture_steps, 1000)
      ->description(
          "Number of steps whose pictures are shown: the first, the last, and some in between");
  return runner_of(o, run_report);
}

Runner add_sync(CLI::App& app) {
  auto data_path = std::make_shared<std::string>();
  app.add_option("data_path", *data_path, "Folder of the run (tracker.data_path of its config)")
      ->required();
  return runner_of(
      data_path, run_sync, /*ends_by_itself=*/true);  // what is left stays in the outbox
}

/// Options before the name of a command are those of a training.
void check_no_training_options(const CLI::App& app, const CLI::App& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    throw ConfigError(
        "{}: has no effect before the name of the command `{}`\n  Options of a command follow its "
        "name: `dalle2-train {} --help` lists them.",
        option->get_name(),
        command.get_name(),
        command.get_name());
  }
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app{
      "Trains DALLE2-style image generators: decoders and CLIPs from webdataset shards, priors "
      "from "
      "embeddings, VQGAN-VAEs from pictures."};
  app.name("dalle2-train");
  app.set_version_flag("--version", [] {
    return program_version_text() + "\n  command line by CLI11 " CLI11_VERSION;
  });
  app.formatter(help_formatter());
  app.footer(
      "Exit codes: 0 success, 1 any other error, 2 wrong usage or config, 3 missing or damaged data,\n"
      "4 too many non-finite losses in a row, 5 out of memory or disk space, 6 lost process or "
      "network,\n75 stopped by a signal after saving (run it again to continue); commands that "
      "cannot be continued are killed by the signal.");
  app.failure_message(usage_error_text);

  std::vector<std::pair<CLI::App*, Runner>> commands;
  const auto command =
      [&](CLI::App& parent, const char* name, const char* text, Runner (*add)(CLI::App&)) {
        CLI::App* sub = parent.add_subcommand(name, text);
        commands.emplace_back(sub, add(*sub));
        add_rules(*sub);
      };
  TrainCommand train;
  add_train(app, train);
  command(app,
          "sample",
          "Draw pictures from a decoder's checkpoint, or image embeddings from a prior's",
          add_sample);
  command(app,
          "evaluate",
          "Print the metrics of a decoder or CLIP, a prior's similarities or a VAE's losses as "
          "one JSON object",
          add_evaluate);
  command(app, "inspect", "List the entries of a checkpoint", add_inspect);
  command(
      app, "fsck", "Verify checkpoints, and tell whether a run could resume from them", add_fsck);
  command(app,
          "convert",
          "Convert between .pth and .safetensors, join stages, merge and rename adapters",
          add_convert);
  command(app, "ema", "Make an average of the weights, with any width, after training", add_ema);
  command(app, "schema", "Print the JSON Schema of a config", add_schema);
  command(app, "init", "Write a first config that fits a folder of data", add_init);
  command(app, "report", "Show a run as one HTML page: curves, pictures, config", add_report);
  command(app,
          "sync",
          "Send what a run could not send: files to its savers' services, rows to Weights & Biases",
          add_sync);
  CLI::App* shards = app.add_subcommand(
      "shards",
      "Pack and check webdataset shards, show their order, add embeddings or latents, "
      "draw a demo set");
  shards->require_subcommand(1);
  add_shards_commands([&](const char* name, const char* text, Runner (*add)(CLI::App&)) {
    command(*shards, name, text, add);
  });
  command(app,
          "completion",
          "Print the completion script for a shell: bash, zsh or fish",
          [](CLI::App& sub) {
            auto shell = std::make_shared<std::string>();
            sub.add_option("shell", *shell, "bash, zsh or fish")
                ->required()
                ->check(CLI::IsMember({"bash", "zsh", "fish"}));
            return Runner([shell, &sub] {
              std::fputs(completion_script(*sub.get_parent(), *shell).c_str(), stdout);
              return ExitCode::kDone;
            });
          });
  command(app, "man-page", "", [](CLI::App& sub) {
    sub.group("");  // for the installation
    return Runner([&sub] {
      std::fputs(man_page(*sub.get_parent()).c_str(), stdout);
      return ExitCode::kDone;
    });
  });
  app.require_subcommand(0, 1);

  for (int i = 1; i < argc; ++i) {
    if (const auto fault = utf8_fault(argv[i])) {
      throw ConfigError(
          "argument {} of the command line, '{}': {}.\n  Names go into logs and checkpoints, which "
          "hold only UTF-8: rename the file, or write the value in UTF-8.",
          i,
          as_utf8(argv[i]),
          *fault);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 prints help and version, with code 0; all else is a usage error.
    if (app.exit(error) != 0) return static_cast<int>(ExitCode::kConfig);
    check_stdout();
    return 0;
  }
  for (const auto& [sub, run] : commands) {
    if (!sub->parsed()) continue;
    check_no_training_options(app, *sub);
    uninstall_stop_signals();  // those with something to save install them again
    const ExitCode code = run();
    check_stdout();
    return static_cast<int>(code);
  }
  return static_cast<int>(run_train(train));
}

CLI::Validator whole_number(int64_t most) {
  const auto check = [most](std::string& text) -> std::string {
    int64_t value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value);
    return is_number && value >= 1 && value <= most
               ? ""
               : "expected a whole number from 1 to " + std::to_string(most) + ", got " + text;
  };
  return CLI::Validator(check, "COUNT");
}

CLI::Validator non_empty(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) -> std::string {
        return text.empty() ? "expected " + what + ", got ''" : "";
      },
      "");
}

OptionFacts given_options(const CLI::App& app) {
  OptionFacts given;
  for (const CLI::Option* option : app.get_options())
    given[option->get_name()] = option->count() > 0;
  return given;
}

void add_rules(CLI::App& app) {
  const std::string command = app.get_name();
  for (const OptionRule& rule : option_rules(command)) {
    for (const std::string& name : rule.options) {
      if (!name.starts_with("--")) continue;
      CLI::Option* const option = app.get_option(name);
      option->description(option->get_description() + rule_help(rule));
    }
  }
  app.callback([&app, command] { check_options(command, given_options(app)); });
}

void add_overrides(CLI::App& app, std::vector<std::string>& overrides, const char* text) {
  app.add_option("--set", overrides, text)->type_name("/POINTER=VALUE")->allow_extra_args(false);
}

void add_device(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "cpu, cuda, or cuda:N for GPU number N")
      ->capture_default_str()
      ->type_name("DEVICE:{cpu,cuda}");
}

void add_folder(CLI::App& app, const char* name, std::string& path, const char* text) {
  app.add_option(name, path, text)->required()->type_name("DIR")->check(non_empty("a path"));
}

void add_digits(CLI::App& app, const char* name, int64_t& digits, const char* text) {
  constexpr int64_t kMost = 18;  // of a number of 64 bits
  app.add_option(name, digits, text)
      ->type_name("DIGITS")
      ->capture_default_str()
      ->check(whole_number(kMost));
}

void add_caption_encoding(CLI::App& app, std::string& encoding) {
  add_value(app, "--caption-encoding NAME", encoding)
      ->description("Encoding of captions that are not UTF-8 and have no byte order mark")
      ->capture_default_str();
}

void add_overwrite(CLI::App& app, bool& overwrite, const char* text) {
  app.add_flag("--overwrite", overwrite, text);
}

void add_processes(CLI::App& app, int64_t& processes, const std::string& what_they_do) {
  app.add_option("--nproc-per-node",
                 processes,
                 "Start N processes on this machine, which " + what_they_do +
                     " together; each takes a GPU, or a share of the cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

}  // namespace dalle2
