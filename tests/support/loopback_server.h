// SPDX-License-Identifier: MIT
// An HTTP server on the loopback that misbehaves as a test asks it to.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dalle2::test {

struct HttpRequest {
  std::string method, path, body;
  std::map<std::string, std::string> headers;  ///< names in lower case
  int number = 0;                              ///< of this path, from 1
  /// First byte asked for, 0 without a Range.
  size_t range_start() const {
    const auto range = headers.find("range");
    return range == headers.end() ? 0 : std::stoul(range->second.substr(6));
  }
};

/// What the server writes; the connection stays open only if `keep`.
struct HttpReply {
  std::string bytes;
  bool keep = false;
  bool hang = false;  ///< neither more bytes nor a close until the server ends
  size_t piece = 0;   ///< bytes between two pauses; 0: no pauses
  int pause_ms = 0;
};

/// A whole answer. `headers` end in \r\n each.
inline HttpReply http_reply(int status, const std::string& body, const std::string& headers = "") {
  return {"HTTP/1.1 " + std::to_string(status) + " Text\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body,
          true};
}

/// The rest of `body` as the request's Range asks for it; the whole without one.
inline HttpReply ranged_reply(const HttpRequest& request, const std::string& body) {
  const size_t start = request.range_start();
  if (start == 0) return http_reply(200, body, "ETag: \"1\"\r\n");
  if (start >= body.size()) {
    return http_reply(416, "", "Content-Range: bytes */" + std::to_string(body.size()) + "\r\n");
  }
  return http_reply(206,
                    body.substr(start),
                    "ETag: \"1\"\r\nContent-Range: bytes " + std::to_string(start) + "-" +
                        std::to_string(body.size() - 1) + "/" + std::to_string(body.size()) +
                        "\r\n");
}

/// The first `size` bytes of a reply, then the end of the connection.
inline HttpReply cut_after(HttpReply reply, size_t size) {
  return {reply.bytes.substr(0, reply.bytes.find("\r\n\r\n") + 4 + size), false};
}

class LoopbackServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  explicit LoopbackServer(Handler handler)
      : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no loopback socket");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~LoopbackServer() {
    ended_ = true;
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int connection : open_) shutdown(connection, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  std::string url(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  int connections() const { return connections_; }
  int requests(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return requests_[path];
  }

 private:
  void accept_all() {
    while (!ended_) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      ++connections_;
      const std::lock_guard lock(mutex_);
      open_.insert(connection);
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }

  void serve(int connection) {
    HttpRequest request;
    while (!ended_ && read_request(connection, request)) {
      const HttpReply reply = handler_(request);
      size_t sent = 0;
      while (sent < reply.bytes.size()) {
        const size_t rest = reply.bytes.size() - sent;
        const bool slow = reply.piece > 0 && sent >= reply.bytes.find("\r\n\r\n");
        const ssize_t size = send(connection,
                                  reply.bytes.data() + sent,
                                  slow ? std::min(rest, reply.piece) : slow_start(reply, rest),
                                  MSG_NOSIGNAL);
        if (size <= 0 || ended_) break;
        if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(reply.pause_ms));
        sent += static_cast<size_t>(size);
      }
      char byte = 0;
      while (reply.hang && recv(connection, &byte, 1, 0) > 0) {
      }
      if (!reply.keep || reply.hang) break;
    }
    const std::lock_guard lock(mutex_);
    open_.erase(connection);
    close(connection);
  }

  /// The headers in one piece.
  static size_t slow_start(const HttpReply& reply, size_t rest) {
    return reply.piece > 0 ? reply.bytes.find("\r\n\r\n") + 4 : rest;
  }

  bool read_request(int connection, HttpRequest& request) {
    std::string text;
    char byte = 0;
    while (!text.ends_with("\r\n\r\n")) {
      if (recv(connection, &byte, 1, 0) != 1) return false;
      text += byte;
    }
    request = HttpRequest{};
    const size_t space = text.find(' ');
    request.method = text.substr(0, space);
    request.path = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    for (size_t at = text.find("\r\n") + 2; at + 2 < text.size();) {
      const size_t end = text.find("\r\n", at), colon = text.find(": ", at);
      std::string name = text.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (!read_body(connection, request)) return false;
    const std::lock_guard lock(mutex_);
    request.number = ++requests_[request.path];
    return true;
  }

  static bool read_body(int connection, HttpRequest& request) {
    const auto length = request.headers.find("content-length");
    const size_t size = length == request.headers.end() ? 0 : std::stoul(length->second);
    request.body.resize(size);
    for (size_t got = 0; got < size;) {
      const size_t most = std::min<size_t>(size - got, 20'000);
      if (request.path == "/slowly") std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const ssize_t piece = recv(connection, request.body.data() + got, most, 0);
      if (piece <= 0) return false;
      got += static_cast<size_t>(piece);
    }
    return true;
  }

  const Handler handler_;
  const int listener_;
  int port_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<int> connections_ = 0;
  std::mutex mutex_;  // guards the next three
  std::set<int> open_;
  std::map<std::string, int> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace dalle2::test
