// SPDX-License-Identifier: MIT
// Every parser that reads what others wrote, as a function of bytes. Each returns or
// throws one of our errors; anything else is a fault. The mutation tests and the coverage-guided
// harnesses call the same.
#pragma once

#include <string>

namespace dalle2::test {

void read_json_text(const std::string& bytes);      ///< parse_untrusted_json()
void read_config_text(const std::string& bytes);    ///< both kinds of configs, and an override
void read_template(const std::string& bytes);       ///< names of targets, Python's grammar
void read_url_list(const std::string& bytes);       ///< braces, "::", what is shown of urls
void read_index_page(const std::string& bytes);     ///< links of a page
void read_s3_page(const std::string& bytes);        ///< XML of a listing
void read_aws_files(const std::string& bytes);      ///< ~/.aws/config and credentials
void read_log_of_run(const std::string& bytes);     ///< log.jsonl, for the report
void read_stored_config(const std::string& bytes);  ///< what the report shows of a config
void read_npy_array(const std::string& bytes);
void read_tar_samples(const std::string& bytes);
void read_picture(const std::string& bytes);       ///< JPEG, PNG, WebP
void read_caption(const std::string& bytes);       ///< cleaned, and as tokens
void read_clip_merges(const std::string& bytes);   ///< the vocabulary of a CLIP
void read_pickle_graph(const std::string& bytes);  ///< the stack machine; values need torch

// Of checkpoint_parsers.cpp, with torch.
void read_zip_archive(const std::string& bytes);      ///< directory, headers and checksums
void read_pickled_value(const std::string& bytes);    ///< tensors over storages of 256 bytes
void read_checkpoint_file(const std::string& bytes);  ///< torch.save() old and new, safetensors
void read_script_file(const std::string& bytes);      ///< torch.jit.save()

}  // namespace dalle2::test
