"""Requests written for this project: topics and forms that ``prompts.py`` combines."""

from __future__ import annotations


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.replace("\n", " ").split(";"))


CHAT_TOPICS = _items("""
photosynthesis; the French Revolution; black holes; the water cycle; how vaccines work; inflation;
plate tectonics; the Roman Empire; a healthy breakfast; jazz music; climate change;
the human heart; DNA; gravity; electric cars; time management; job interviews; gardening;
chess openings; football; ocean currents; volcanoes; the internet; encryption; databases;
machine learning; poetry; painting; cooking pasta; baking bread; travel in Japan; hiking; camping;
dogs; cats; birds; public speaking; learning a language; saving money; credit cards; sleep;
stress at work; remote work; solar energy; wind power; recycling; coffee; tea; chocolate; wine;
the Moon; Mars; comets; dinosaurs; whales; bees; rain forests; deserts; glaciers; earthquakes;
the Second World War; ancient Egypt; the Renaissance; the Industrial Revolution; democracy;
human rights; Shakespeare; science fiction; detective novels; fairy tales; photography; film;
ballet; the piano; the guitar; yoga; running a marathon; swimming; cycling; skiing; tennis;
first aid; vitamins; the immune system; memory; dreams; friendship; leadership; teamwork;
negotiation; marketing; startups; supply and demand; taxes; insurance; mortgages; robots;
smartphones; social networks; video games; cloud computing; computer viruses; bridges;
skyscrapers; trains; aeroplanes; ships; clocks; maps; money; paper; glass; steel; plastics""")

CHAT_FORMS = (
    "Explain {} to a child.",
    "Write a short paragraph about {}.",
    "List five facts about {}.",
    "What are the pros and cons of {}?",
    "Write a dialogue about {}.",
    "Give a step-by-step guide related to {}.",
    "Summarize the history of {}.",
    "What should a beginner know about {}?",
    "Write an email to a friend about {}.",
    "Write a short story that involves {}.",
    "What are common misconceptions about {}?",
    "Why does {} matter today?",
)

CODE_TASKS = _items("""
reverse a string; check if a number is prime; compute the factorial of a number;
merge two sorted lists; count vowels in a string; find the maximum of a list;
remove duplicates from a list; compute the Fibonacci sequence; check for palindromes;
flatten a nested list; compute the mean of a list; convert Celsius to Fahrenheit;
sort a dictionary by value; count words in a text; generate all permutations of a list;
find the greatest common divisor of two numbers; implement a stack; implement a queue;
search a sorted list by bisection; sort a list with bubble sort; sort a list with quicksort;
read a file line by line; parse a CSV file; write a list to a JSON file; compute a power;
check if two strings are anagrams; find the second largest number in a list; rotate a list;
transpose a matrix; multiply two matrices; sum the digits of a number;
convert a number to binary; count the frequency of each letter; find the longest word;
check if brackets are balanced; implement a linked list; traverse a binary tree;
find the shortest path in a graph; compute the median of a list; split a list into chunks;
validate an email address; generate a random password; capitalize each word in a sentence;
remove spaces from a string; find common elements of two lists; compute compound interest;
check if a year is a leap year; print a multiplication table; find all even numbers in a list;
count the number of lines in a file; compute the area of a circle; swap two variables;
find the index of an element in a list; join a list of strings; check if a list is sorted""")

CODE_FORMS = (
    "Write a Python function to {}.",
    "Write Python code to {} and explain it.",
    "Complete this Python function with a docstring: a function to {}.",
    "Write a JavaScript function to {}.",
    "How can I {} in Python? Show an example.",
    "Write a Python function to {}, with type hints and unit tests.",
)
