// SPDX-License-Identifier: MIT
// The options of `shards demo|make|check|order|encode|embed|score`.

#include "base/public_url.h"
#include "command_options.h"
#include "demo/demo_commands.h"

namespace dalle2 {

namespace {

Runner add_shards_demo(CLI::App& app) {
  auto o = std::make_shared<DemoShardOptions>();
  add_folder(app, "--out", o->out, "Folder for the shards, the embeddings and the held-out split");
  add_count(app, "--num", o->num)->description("Number of pictures");
  app.add_option("--image-size", o->image_side, "Side of the pictures in pixels")
      ->capture_default_str()
      ->check(CLI::Range(16, 1024));
  app.add_option("--seed", o->seed, "Seed of the drawings")->capture_default_str();
  add_overwrite(app, o->overwrite, "Replace the shards and embeddings that DIR holds");
  return runner_of(o, run_shards_demo);
}

Runner add_shards_make(CLI::App& app) {
  auto o = std::make_shared<ShardsMakeCommand>();
  add_folder(app,
             "--from",
             o->from_folder,
             "Folder of pictures with captions (same-named .txt, .caption or .json, or "
             "metadata.jsonl or .csv; searched recursively), or of shards to mix anew");
  add_folder(app, "--out", o->out_folder, "Folder for the shards");
  app.add_option("--per-shard", o->per_shard)
      ->description("Samples in a shard (default: a tenth of all samples, at most 1000)")
      ->check(whole_number());
  app.add_flag("--in-order", o->in_order)
      ->description("Keep the order of the paths instead of mixing the folders");
  app.add_flag("--together", o->together)
      ->description(
          "Pack all pictures of a lowest folder into one shard, so that they lie in one split");
  app.add_option("--seed", o->seed, "Seed of the order")->capture_default_str();
  add_digits(app,
             "--index-width",
             o->index_width,
             "Number of digits at the end of a key that count the samples of a shard");
  add_value(app, "--ground white|black|R,G,B", o->ground)
      ->description("Put transparent pictures on a background of this colour");
  app.add_flag("--need-captions", o->need_captions, "Leave out pictures without a caption");
  app.add_flag("--first-line", o->first_line_only, "Take only the first line of a caption file");
  add_caption_encoding(app, o->caption_encoding);
  add_overwrite(app, o->overwrite, "Replace the shards and embeddings that DIR holds");
  return runner_of(o, run_shards_make, /*ends_by_itself=*/true);  // DIR stays as it was
}

Runner add_shards_check(CLI::App& app) {
  auto o = std::make_shared<ShardsCheckCommand>();
  app.add_option("shards", o->url)
      ->description(
          "Folder of tars or of pictures; or a path or URL (http(s)://, s3://, hf://, pipe:), with "
          "braces {000..009}, or with {} and --last")
      ->required()
      ->type_name("SHARDS")
      ->transform(with_small_schemes)
      ->check(non_empty("a path"));
  const auto shard_number = CLI::Range(int64_t{0}, int64_t{1'000'000'000});
  add_value(app, "--first N", o->first_shard)
      ->description("First shard number of SHARDS with {} (default: 0)")
      ->check(shard_number);
  add_value(app, "--last N", o->last_shard)
      ->description("Last shard number of SHARDS with {}")
      ->check(shard_number);
  app.add_flag("--in-tar", o->embeddings_in_tar)
      ->description("Image embeddings are inside the shards (KEY.img_emb.npy)");
  app.add_flag("--allow-pipe", o->allow_pipe)
      ->description("Run the commands of pipe: URLs, with your permissions, on this machine");
  add_value(app, "--img-embeddings DIR", o->img_embeddings)
      ->description(
          "Image embeddings: folder (or URL, as for SHARDS) of <shard>.npy or PREFIX_<shard>.npy [N, D]")
      ->transform(with_small_schemes);
  add_value(app, "--text-embeddings DIR", o->text_embeddings)
      ->description("Text encodings, given like --img-embeddings, [N, L, D]")
      ->transform(with_small_schemes);
  add_digits(app, "--shard-width", o->shard_width, "Digits of the shard number for {}");
  add_digits(app,
             "--index-width",
             o->index_width,
             "Number of digits at the end of a key that give its row in the embeddings");
  add_caption_encoding(app, o->caption_encoding);
  app.footer(
      "Reads every shard, decodes every picture, and prints what is wrong with each. Exit code 3 "
      "if a shard cannot be read or has no samples, if samples cannot be used, or if embeddings "
      "seem to belong to other pictures; 6 if a shard cannot be reached.");
  return runner_of(o, run_shards_check);
}

Runner add_shards_order(CLI::App& app) {
  auto o = std::make_shared<ShardsOrderCommand>();
  add_value(app, "--config,--config_file FILE", o->config_path)
      ->description("Config (JSON) of a decoder")
      ->required();
  add_overrides(app, o->overrides);
  add_count(app, "--world", o->world, 4096)
      ->description("Ranks (processes, GPUs) that share the epoch");
  add_value(app, "--epoch N", o->epoch)
      ->description("Epoch to read from its beginning (default: 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}));
  add_count(app, "--steps", o->steps)
      ->description("Steps to take (default: to the end of the epoch)");
  add_value(app, "--from FILE", o->from_path)
      ->description(
          "Continue from a position that --save wrote, or from the checkpoint of a run, with any --world");
  add_value(app, "--save FILE", o->save_path)
      ->description("Write the position after the last step");
  app.add_flag("--print", o->print)
      ->description("Print one JSON line per step with the keys of each rank, and no table");
  add_overwrite(app, o->overwrite, "Replace the file of --save");
  app.footer(
      "Reads the training shards with the loaders of all ranks in one process, and trains nothing. "
      "Without --print it shows a table: batches, samples and steps without a batch of each rank.");
  return runner_of(o, run_shards_order);
}

Runner add_shards_encode(CLI::App& app) {
  auto o = std::make_shared<ShardsEncodeCommand>();
  add_value(app, "--config,--config_file FILE", o->config_path)
      ->description("Config (JSON) of a decoder with a VAE before its first unet")
      ->required();
  add_overrides(app, o->overrides);
  add_folder(app, "--out", o->out_folder, "Folder for the shards with latents");
  add_device(app, o->device);
  add_processes(app, o->processes, "encode");
  add_overwrite(app, o->overwrite, "Replace the shards and embeddings that DIR holds");
  app.footer(
      "Writes a copy of each shard that the config names, with KEY.latent.npy beside each "
      "picture: the latent of the picture after data.preprocessing. Prints the scale that suits the noise schedules. Train "
      "with data.latents_in_tar.");
  return runner_of(o, run_shards_encode, /*ends_by_itself=*/true);
}

Runner add_shards_embed(CLI::App& app) {
  auto o = std::make_shared<ShardsEmbedCommand>();
  app.add_option("shards", o->url)
      ->description(
          "Folder of tars; or a path or URL (http(s)://, s3://, hf://), with braces {000..009} or, "
          "unless it is http(s)://, with {}")
      ->required()
      ->type_name("SHARDS")
      ->transform(with_small_schemes)
      ->check(non_empty("a path"));
  add_value(app, "--clip FILE", o->clip_path)
      ->description(
          "File of a CLIP: checkpoint.pth or model.pth of a run, or a file of OpenAI, open_clip, Hugging Face or x-clip")
      ->required();
  add_value(app, "--clip-config FILE", o->clip_config_path)
      ->description("Config of the CLIP, instead of the one in or beside its file");
  add_folder(app, "--out", o->out_folder, "Folder for the shards and arrays with embeddings");
  app.add_flag("!--no-captions", o->captions, "Embed pictures alone, also those without a caption");
  app.add_flag("--text-encodings", o->text_encodings)
      ->description(
          "Also write a vector for each token, for decoders and priors conditioned on text");
  add_value(app, "--ground white|black|R,G,B", o->ground)
      ->description(
          "Colour under transparent pictures, like data.ground. Default of these three: as in the run of the CLIP");
  app.add_flag("--apply-exif", o->apply_exif, "Turn pictures upright, like data.apply_exif");
  app.add_option("--range", o->range, "White of grey pictures with 16 bits, like data.range")
      ->check(CLI::Range(1, 65'535));
  add_count(app, "--batch-size", o->batch_size, 100'000)->description("Samples embedded at once");
  add_digits(app, "--shard-width", o->shard_width, "Digits of the shard number for {}");
  add_device(app, o->device);
  add_processes(app, o->processes, "embed");
  add_overwrite(app, o->overwrite, "Replace the shards and embeddings that DIR holds");
  app.footer(
      "Writes a copy of each shard, with KEY.img_emb.npy beside the picture, and the embeddings of "
      "its samples as arrays: DIR/img_emb/NUMBER.npy, DIR/text_emb/NUMBER.npy. Samples without a "
      "caption are left out, unless --no-captions is given: then there is no text_emb.");
  return runner_of(o, run_shards_embed, /*ends_by_itself=*/true);
}

Runner add_shards_score(CLI::App& app) {
  auto o = std::make_shared<DemoScoreCommand>();
  add_folder(app, "--drawn", o->drawn_folder, "Folder that `sample` wrote");
  add_folder(app, "--heldout", o->heldout_folder, "heldout/ folder that `shards demo` wrote");
  add_value(app, "--grid PNG", o->grid_path)
      ->description("Picture to write: the requested pictures beside the drawn ones")
      ->required();
  app.add_flag("--overwrite", o->overwrite, "Replace the picture if it is there");
  return [o] {
    check_out_file("--grid", o->grid_path, o->overwrite);
    run_demo_score(*o);
    return ExitCode::kDone;
  };
}

}  // namespace

void add_shards_commands(
    const std::function<void(const char* name, const char* text, Runner (*add)(CLI::App&))>& add) {
  add("demo", "Draw captioned shapes with known attributes", add_shards_demo);
  add("make", "Pack a folder of pictures and captions", add_shards_make);
  add("check", "Verify shards and their embeddings", add_shards_check);
  add("order", "Show which samples each rank gets, step by step", add_shards_order);
  add("encode", "Copy shards, with the latents of a VAE beside the pictures", add_shards_encode);
  add("embed", "Copy shards, with the embeddings of a CLIP beside the pictures", add_shards_embed);
  add("score",
      "Compare the drawings of the demo's held-out requests with the requested pictures",
      add_shards_score);
}

}  // namespace dalle2
